"""The engine called bare, in a process of its own: what the server's answers are compared with. Prints JSON."""

import json
import sys
from typing import Any

import numpy as np
import openvino
import openvino_genai as genai


def run(path: str, prompts: list[str], tokens: int) -> list[dict[str, Any]]:
    pipeline = genai.ContinuousBatchingPipeline(path, genai.SchedulerConfig(), "CPU")
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


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]))))
