"""The engine called bare, in a process of its own: what the server's answers are compared with. Prints JSON.

With a folder as the fourth argument, also makes an OpenVINO IR of the model there, with an adapter of noise.
"""

import json
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import openvino_genai as genai

LAYERS, WIDTH = 30, 576
PRECISE = {"KV_CACHE_PRECISION": "f32", "INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}


def run(path: str, prompts: list[str], tokens: int, properties: dict[str, Any]) -> list[dict[str, Any]]:
    pipeline = genai.ContinuousBatchingPipeline(path, genai.SchedulerConfig(), "CPU", properties)
    tokenizer = pipeline.get_tokenizer()
    results = []
    for number, prompt in enumerate(prompts):
        config = genai.GenerationConfig()
        config.max_new_tokens = tokens
        config.apply_chat_template = False
        config.eos_token_id = tokenizer.get_eos_token_id()
        config.logprobs = 1
        ids = tokenizer.encode(prompt).input_ids.data[0].tolist()
        handle = pipeline.add_request(number, openvino.Tensor(np.array([ids], np.int64)), config)
        while pipeline.has_non_finished_requests():
            pipeline.step()
        (output,) = handle.read_all()
        text = tokenizer.decode(output.generated_ids)
        results.append({"prompt": len(ids), "ids": output.generated_ids, "text": text, "score": output.score})
    return results


def convert(path: Path, folder: Path) -> None:
    """An IR whose projections of queries are called as optimum calls them: by this name an adapter finds them."""
    genai.Tokenizer(str(path), enable_save_ov_model=True)
    model = openvino.Core().read_model(path.parent / "openvino_model.xml")
    square = openvino.PartialShape([WIDTH, WIDTH])
    nodes = [
        node
        for node in model.get_ordered_ops()
        if node.get_type_name() == "MatMul" and node.input_value(1).get_partial_shape() == square
    ]
    for layer in range(LAYERS):  # each has two: of queries, and of the output
        nodes[2 * layer].set_friendly_name(f"__module.model.layers.{layer}.self_attn.q_proj/aten::linear/MatMul")
    folder.mkdir(parents=True)
    openvino.save_model(model, folder / "openvino_model.xml", compress_to_fp16=False)
    for file in path.parent.glob("openvino_*tokenizer.*"):
        file.rename(folder / file.name)
    random = np.random.default_rng(0)
    arrays = {
        f"base_model.model.model.layers.{layer}.self_attn.q_proj.lora_{part}.weight": random.normal(0, 0.2, shape)
        for layer in range(LAYERS)
        for part, shape in (("A", (4, WIDTH)), ("B", (WIDTH, 4)))
    }
    head, parts, end = {}, [], 0
    for name, array in arrays.items():
        parts.append(array.astype(np.float32).tobytes())
        head[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [end, end + len(parts[-1])]}
        end += len(parts[-1])
    described = json.dumps(head).encode()
    (folder / "noise.safetensors").write_bytes(struct.pack("<Q", len(described)) + described + b"".join(parts))


def main(file: str, prompts: str, tokens: str, folder: str) -> None:
    results = run(file, json.loads(prompts), int(tokens), PRECISE | {"enable_save_ov_model": True})
    convert(Path(file), Path(folder))
    adapters = genai.AdapterConfig(mode=genai.AdapterConfig.Mode.MODE_STATIC)
    adapters.add(genai.Adapter(f"{folder}/noise.safetensors"), 0.5)
    tuned = run(folder, json.loads(prompts)[:1], int(tokens), PRECISE | {"adapters": adapters})
    print(json.dumps(results + tuned))


if __name__ == "__main__":
    main(*sys.argv[1:])
