"""The messages and enums of protos/*.proto as attributes, and the RPCs of the service; inference.pyi has the types."""

from pathlib import Path

from google.protobuf.descriptor_pool import DescriptorPool

from modserve.pb.descriptors import load_files, service_methods, top_level_names

POOL = DescriptorPool()
_FILES = load_files(POOL, Path(__file__).with_name("inference.binpb").read_bytes())
SERVICE = "inference.GRPCInferenceService"
METHODS = service_methods(POOL.FindServiceByName(SERVICE))

globals().update(top_level_names(_FILES, __name__))
