"""The messages of ``grpc.reflection.v1`` as attributes, and the RPCs of its service; reflection.pyi has the types.

``grpc.reflection.v1alpha`` is in the pool as well. Its messages are the same on the wire, so these classes serve both.
"""

from pathlib import Path

from google.protobuf import text_format
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from modserve.pb.descriptors import load_files, service_methods, top_level_names
from modserve.pb.inference import POOL


def _renamed(descriptor_set: bytes) -> FileDescriptorProto:
    """Return the one file of the set, with the older name in its path, its package and its types."""
    (file,) = FileDescriptorSet.FromString(descriptor_set).file
    text = text_format.MessageToString(file)
    for separator in "./":
        text = text.replace(f"reflection{separator}v1{separator}", f"reflection{separator}v1alpha{separator}")
    text = text.replace('package: "grpc.reflection.v1"', 'package: "grpc.reflection.v1alpha"')
    return text_format.Parse(text, FileDescriptorProto())


_SET = Path(__file__).with_name("reflection.binpb").read_bytes()
_FILES = load_files(POOL, _SET)
POOL.AddSerializedFile(_renamed(_SET).SerializeToString())
SERVICE = "grpc.reflection.v1.ServerReflection"
METHODS = service_methods(POOL.FindServiceByName(SERVICE))

globals().update(top_level_names(_FILES, __name__))
