"""Write a model that doubles a number for each of some engines: ``image_models.py DIRECTORY BACKEND …``.

Runs inside the image, which has the engines' libraries; scripts/image_check.py serves what it writes.
"""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

PYTHON = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        doubled = [pb_utils.get_input_tensor_by_name(each, "x").as_numpy() * 2 for each in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", np.float32(each))]) for each in doubled]
"""
PYTHON_CONFIG = """
backend: "python"
input [ { name: "x" data_type: TYPE_FP32 dims: [ -1, 1 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ -1, 1 ] } ]
"""


def python(directory: Path) -> None:
    (directory / "model.py").write_text(PYTHON)
    (directory.parent / "config.pbtxt").write_text(PYTHON_CONFIG)


def openvino(directory: Path) -> None:
    import openvino

    x = openvino.opset13.parameter([-1, 1], openvino.Type.f32, name="x")
    y = openvino.opset13.multiply(x, openvino.opset13.constant(2.0, openvino.Type.f32))
    openvino.save_model(openvino.Model([y], [x], "double"), directory / "model.xml")


def pytorch(directory: Path) -> None:
    import torch

    class Double(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * x

    torch.export.save(torch.export.export(Double().eval(), (torch.ones(1, 1),)), directory / "model.pt2")


def fil(directory: Path) -> None:
    from treelite import model_builder as build

    trees: Any = build.ModelBuilder(
        threshold_type="float32",
        leaf_output_type="float32",
        metadata=build.Metadata(
            num_feature=1,
            task_type="kRegressor",
            average_tree_output=False,
            num_target=1,
            num_class=[1],
            leaf_vector_shape=(1, 1),
        ),
        tree_annotation=build.TreeAnnotation(num_tree=1, target_id=[0], class_id=[0]),
        postprocessor=build.PostProcessorFunc(name="identity"),
        base_scores=[0.0],
    )
    trees.start_tree()
    trees.start_node(0)
    trees.numerical_test(
        feature_id=0, threshold=0.5, default_left=True, opname="<", left_child_key=1, right_child_key=2
    )
    trees.end_node()
    for key, value in ((1, 0.0), (2, 2.0)):
        trees.start_node(key)
        trees.leaf(value)
        trees.end_node()
    trees.end_tree()
    trees.commit().serialize(str(directory / "checkpoint.tl"))


def sklearn(directory: Path) -> None:
    import skops.io
    from sklearn.linear_model import LinearRegression

    skops.io.dump(LinearRegression().fit([[0.0], [1.0]], [0.0, 2.0]), directory / "model.skops")


def mlflow(directory: Path) -> None:
    import mlflow.pyfunc
    import numpy as np
    from mlflow.models import infer_signature

    class Double(mlflow.pyfunc.PythonModel):  # type: ignore[misc, name-defined]
        def predict(self, context, model_input, params=None):  # type: ignore[no-untyped-def]
            return 2 * model_input

    ones = np.ones((1, 1), np.float32)
    signature = infer_signature(ones, 2 * ones)
    mlflow.pyfunc.save_model(str(directory), python_model=Double(), signature=signature, pip_requirements=[])


WRITERS: Mapping[str, Callable[[Path], None]] = {
    "python": python,
    "openvino": openvino,
    "pytorch": pytorch,
    "fil": fil,
    "sklearn": sklearn,
    "mlflow": mlflow,
}
"""By the name of the backend; the model has the same name."""

if __name__ == "__main__":
    for backend in sys.argv[2:]:
        version = Path(sys.argv[1], backend, "1")
        version.mkdir(parents=True)
        WRITERS[backend](version)
