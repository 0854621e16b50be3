"""Three models without a configuration: a function of arrays, a class that loads data, and a generator that streams.

modserve serve places.py:distance nearest=places.py:Nearest places.py:route
"""

import csv
from collections.abc import Iterator
from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray

import modserve

EARTH_RADIUS_KM = 6371.0

Places = Annotated[NDArray[np.float64], modserve.Spec(shape=[2])]
"""Latitude and longitude in degrees, one row for each place."""


def kilometres(start: NDArray[np.float64], end: NDArray[np.float64]) -> NDArray[np.float64]:
    """The great-circle distance between places [..., 2]; a common function, and no model."""
    latitudes = np.radians(start[..., 0]), np.radians(end[..., 0])
    across = np.sin(np.radians(end - start) / 2) ** 2
    haversine = across[..., 0] + np.cos(latitudes[0]) * np.cos(latitudes[1]) * across[..., 1]
    distance: NDArray[np.float64] = 2 * EARTH_RADIUS_KM * np.arcsin(np.sqrt(haversine))
    return distance


@modserve.model(max_batch_size=1024)
def distance(start: Places, end: Places) -> NDArray[np.float64]:
    """Arrays in, arrays out: requests that wait are merged into one call."""
    return kilometres(start, end)[:, None]


class City(NamedTuple):
    name: NDArray[np.str_]
    distance: NDArray[np.float64]


@modserve.model(max_batch_size=1024)
class Nearest:
    """What is loaded once, for each process, is loaded in `__init__`."""

    def __init__(self, context: modserve.Context) -> None:
        with open(f"{context.directory}/cities.csv", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        self.names = np.array([row["city"] for row in rows], np.object_)
        self.places = np.array([[row["latitude"], row["longitude"]] for row in rows], np.float64)

    def predict(self, place: Places) -> City:
        distances = kilometres(place[:, None], self.places)
        nearest = distances.argmin(axis=1)
        return City(self.names[nearest][:, None], distances.min(axis=1)[:, None])


class Waypoint(NamedTuple):
    latitude: float
    longitude: float


@modserve.model
def route(start: Places, end: Places, steps: int = 10) -> Iterator[Waypoint]:
    """A response for each step on the great circle; it is closed when its client has gone."""
    if steps < 1:
        raise modserve.InvalidInputError(f"'steps' is {steps}; there must be one at least")
    ends = [np.radians(place) for place in (start, end)]
    first, last = (np.array([np.cos(a) * np.cos(b), np.cos(a) * np.sin(b), np.sin(a)]) for a, b in ends)
    angle = max(float(kilometres(start, end)) / EARTH_RADIUS_KM, 1e-9)
    for step in range(steps + 1):
        done = step / steps
        x, y, z = (np.sin((1 - done) * angle) * first + np.sin(done * angle) * last) / np.sin(angle)
        latitude, longitude = np.degrees(np.arcsin(z)), np.degrees(np.arctan2(y, x))
        yield Waypoint(round(float(latitude), 2), round(float(longitude), 2))
