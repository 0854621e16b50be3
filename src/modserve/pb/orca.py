"""The messages of ``xds.data.orca.v3`` and ``xds.service.orca.v3`` as attributes, and the RPCs of the service.

orca.pyi has the types.
"""

from pathlib import Path

from google.protobuf import duration_pb2

from modserve.pb.descriptors import load_files, service_methods, top_level_names
from modserve.pb.inference import POOL

POOL.AddSerializedFile(duration_pb2.DESCRIPTOR.serialized_pb)
_FILES = load_files(POOL, Path(__file__).with_name("orca.binpb").read_bytes())
SERVICE = "xds.service.orca.v3.OpenRcaService"
METHODS = service_methods(POOL.FindServiceByName(SERVICE))

globals().update(top_level_names(_FILES, __name__))
