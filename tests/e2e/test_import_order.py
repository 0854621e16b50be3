"""Our messages and tritonclient's in one process, whichever is imported first."""

import subprocess
import sys

import pytest

IMPORT_OURS = "from modserve.pb import inference as ours"
IMPORT_THEIRS = "import tritonclient.grpc; from tritonclient.grpc import service_pb2 as theirs"
EXCHANGE = """
def request(pb):
    tensor = pb.ModelInferRequest.InferInputTensor(name="x", datatype="FP32", shape=[2, 3])
    tensor.parameters["binary_data_size"].int64_param = 24
    message = pb.ModelInferRequest(model_name="m", id="7", inputs=[tensor], raw_input_contents=[bytes(range(24))])
    message.parameters["priority"].uint64_param = 2**63
    return message

for sender, receiver in ((ours, theirs), (theirs, ours)):
    received = receiver.ModelInferRequest.FromString(request(sender).SerializeToString())
    assert received == request(receiver), received
    assert received.parameters["priority"].WhichOneof("parameter_choice") == "uint64_param"
"""


@pytest.mark.parametrize("imports", [(IMPORT_OURS, IMPORT_THEIRS), (IMPORT_THEIRS, IMPORT_OURS)], ids=["first", "last"])
def test_imports_beside_tritonclient(imports: tuple[str, str]) -> None:
    code = "\n".join([*imports, EXCHANGE])
    process = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert (process.returncode, process.stderr) == (0, "")


def test_default_pool_stays_empty() -> None:
    code = f"""
{IMPORT_OURS}
from google.protobuf import descriptor_pool
try:
    descriptor_pool.Default().FindMessageTypeByName("inference.ModelConfig")
except KeyError:
    print("empty")
"""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout == "empty\n"


# ---- What callers use ---------------------------------------------------------------------------------------------
