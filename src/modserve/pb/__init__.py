"""The protobuf messages of KServe v2 and of Triton's model configuration: `from modserve.pb import inference as pb`.

`protos/*.proto` is the source, from which `scripts/protos` makes `inference.binpb` (descriptors) and `inference.pyi`
(types). The classes live in a descriptor pool of their own, because `tritonclient.grpc` registers the same names in the
default one and the two must import in one process. They are therefore not its classes: bytes pass between the two,
message objects do not. Between processes send bytes too, not pickles: unpickling looks in the default pool.
"""
