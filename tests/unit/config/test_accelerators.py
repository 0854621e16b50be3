"""What a configuration hands on to its engine: accelerators, and operators of the model's own."""

from config_build import ONE_EACH, finish

from modserve.core.configuration.model_config import Accelerator


def test_accelerators() -> None:
    config = finish(
        """
        optimization { execution_accelerators {
            gpu_execution_accelerator: [
                { name: "tensorrt" parameters { key: "precision_mode" value: "FP16" } },
                { name: "cuda" }
            ]
            cpu_execution_accelerator { name: "openvino" parameters { key: "device_type" value: "CPU" } }
        } }
        """
        + ONE_EACH
    ).config
    assert config.gpu_accelerators == (Accelerator("tensorrt", {"precision_mode": "FP16"}), Accelerator("cuda"))
    assert config.cpu_accelerators == (Accelerator("openvino", {"device_type": "CPU"}),)
    assert config.operation_libraries == ()


def test_operators() -> None:
    config = finish(f'model_operations {{ op_library_filename: ["a.so", "b.so"] }} {ONE_EACH}').config
    assert config.operation_libraries == ("a.so", "b.so")
    assert config.gpu_accelerators == config.cpu_accelerators == ()
