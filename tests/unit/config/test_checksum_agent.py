"""``model_repository_agents`` with Triton's checksum agent."""

import pytest
from config_build import finish, problems

from modserve.core.files.checksums import Checksum

MD5 = "d41d8cd98f00b204e9800998ecf8427e"
TENSORS = "input { name: 'A' data_type: TYPE_FP32 dims: 1 } output { name: 'B' data_type: TYPE_FP32 dims: 1 }"


def agent(key: str, value: str, name: str = "checksum") -> str:
    inner = f"name: '{name}' parameters {{ key: '{key}' value: '{value}' }}"
    return f"model_repository_agents {{ agents [ {{ {inner} }} ] }}"


def test_the_digests_are_values() -> None:
    config = finish(f"{TENSORS}\n{agent('md5:./1/model.onnx', MD5.upper())}").config
    assert config.checksums == (Checksum("md5", "1/model.onnx", MD5),)


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("model.onnx", MD5, "expected ALGORITHM:PATH with one of the algorithms MD5, SHA1, SHA256, SHA512"),
        ("CRC32:1/model.onnx", "00", "expected ALGORITHM:PATH"),
        ("MD5:", MD5, "is not a path below the directory"),
        ("MD5:../other/1/model.onnx", MD5, "'../other/1/model.onnx' is not a path below the directory"),
        ("MD5:/etc/passwd", MD5, "'/etc/passwd' is not a path below the directory"),
        ("MD5:1/model.onnx", "xyz", "its value is 'xyz'; expected 32 hexadecimal digits"),
        ("SHA256:1/model.onnx", MD5, "has a value of 32 digits; expected 64"),
    ],
)
def test_parameters_that_are_none(key: str, value: str, text: str) -> None:
    (problem,) = problems(f"{TENSORS}\n{agent(key, value)}")
    assert problem.startswith("2:")
    assert text in problem


def test_other_agents_are_refused() -> None:
    (problem,) = problems(f"{TENSORS}\n{agent('key', 'value', 'decryption')}")
    assert "'checksum' is the only supported agent" in problem
