"""Run by the interpreter that has vLLM: makes a model out of a GGUF file, with a LoRA adapter of noise, and writes what
vLLM called bare says. Arguments: the GGUF file, the folder, prompts and arguments of the engine as JSON.
"""

import json
import os
import sys
from pathlib import Path

LAYERS, WIDTH, RANK = 30, 576, 8


def convert(file: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source, name = str(file.parent), file.name
    plain = GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(source, gguf_file=name, dtype=torch.float32, quantization_config=plain)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source, gguf_file=name).save_pretrained(folder)


def adapt(folder: Path) -> None:
    import torch
    from safetensors.torch import save_file

    random = torch.Generator().manual_seed(0)
    folder.mkdir()
    save_file(
        {
            f"base_model.model.model.layers.{layer}.self_attn.q_proj.lora_{part}.weight": 0.1
            * torch.randn(shape, generator=random)
            for layer in range(LAYERS)
            for part, shape in (("A", (RANK, WIDTH)), ("B", (WIDTH, RANK)))
        },
        folder / "adapter_model.safetensors",
    )
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": ["q_proj"], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config))


def say(folder: Path, prompts: list[str], arguments: dict[str, object]) -> list[dict[str, object]]:
    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest

    model = LLM(**{**arguments, "model": str(folder)})
    sampling = SamplingParams(temperature=0, max_tokens=16, logprobs=1)
    outputs = model.generate(prompts, sampling)
    outputs += model.generate(prompts[:1], sampling, lora_request=LoRARequest("noise", 1, str(folder / "noise")))
    return [
        {
            "prompt": len(each.prompt_token_ids),
            "ids": list(each.outputs[0].token_ids),
            "text": each.outputs[0].text,
            "score": each.outputs[0].cumulative_logprob,
        }
        for each in outputs
    ]


def main(file: str, folder: str, prompts: str, arguments: str) -> None:
    os.environ["VLLM_NO_USAGE_STATS"] = os.environ["HF_HUB_OFFLINE"] = "1"
    place = Path(folder)
    convert(Path(file), place)
    adapt(place / "noise")
    said = say(place, json.loads(prompts), json.loads(arguments))
    (place / "alone.json").write_text(json.dumps(said))


if __name__ == "__main__":
    main(*sys.argv[1:])
