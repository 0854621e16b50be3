"""The messages of ``grpc.health.v1`` as attributes, and the RPCs of its service; health.pyi has the types."""

from pathlib import Path

from modserve.pb.descriptors import load_files, service_methods, top_level_names
from modserve.pb.inference import POOL

_FILES = load_files(POOL, Path(__file__).with_name("health.binpb").read_bytes())
SERVICE = "grpc.health.v1.Health"
METHODS = service_methods(POOL.FindServiceByName(SERVICE))

globals().update(top_level_names(_FILES, __name__))
