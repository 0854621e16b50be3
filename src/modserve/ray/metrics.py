"""The metrics page of all replicas, which any of them serves: each sample names its replica.

A sum would fall when Ray ends a replica without a replacement; a series of its own just ends.
"""

import asyncio
from typing import Any

from modserve.access.authority import Authority
from modserve.frontends.http.wire.context import AsgiApp
from modserve.frontends.metrics import PATHS, MetricsApplication
from modserve.observability import families, prometheus
from modserve.process.listeners import guard_page
from modserve.process.metrics_page import MetricsPage
from modserve.server.local import LocalServer
from modserve.settings import Settings
from modserve.workers.pages import Families, SampleTable, families_of, samples_of
from modserve.workers.tally import PAGE, Tally


def with_page(
    app: AsgiApp, server: LocalServer, settings: Settings, tally: Tally, authority: Authority | None, replica: str
) -> AsgiApp:
    """`app` with the page at its path; `tally` gets the samples of this `replica`."""
    own = MetricsPage(server, server.engine_metrics, settings, dict, dict)
    label = families.format_labels({"replica": replica})

    async def samples(fine: bool) -> Families:
        made = await own.families(fine)
        return await asyncio.to_thread(lambda: {name: _of(table, label) for name, table in samples_of(made).items()})

    async def page() -> bytes:
        tables = await tally.whole(PAGE)
        return await asyncio.to_thread(lambda: families.page(families_of(tables)))

    tally.sources[PAGE] = samples
    served: AsgiApp = MetricsApplication(page, prometheus.CONTENT_TYPE)
    if authority is not None:
        served = guard_page(served, authority, server, open_page="metrics" in settings.auth_open)

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        await (served if scope["path"] in PATHS else app)(scope, receive, send)

    return serve


def _of(table: SampleTable, label: str) -> SampleTable:
    """Return the table with one more label."""

    def add_label(sample: str) -> str:
        name, brace, rest = sample.partition("{")
        return f"{name}{{{label},{rest}" if brace else f"{name}{{{label}}}"

    values = {add_label(sample): value for sample, value in table.values.items()}
    return table._replace(
        values=values, exemplars={add_label(sample): text for sample, text in table.exemplars.items()}
    )
