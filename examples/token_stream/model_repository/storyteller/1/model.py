"""A story, word by word: each word is drawn from those that follow the two words before it in `text.txt`.

Decoupled: a request gets one response for each word, from a thread, after `execute` has returned.
"""

import concurrent.futures
import random
import re
from collections import defaultdict
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

STREAMS = 8
"""How many requests are responded to at the same time."""
MAX_TOKENS = 50


class TritonPythonModel:
    def initialize(self, args):
        self.tokens = tokenize(Path(__file__).with_name("text.txt").read_text(encoding="utf-8"))
        self.followers = defaultdict(list)
        circle = [*self.tokens, *self.tokens[:2]]
        for first, second, follower in zip(circle, circle[1:], circle[2:]):
            self.followers[first, second].append(follower)
            self.followers[second].append(follower)
        self.pool = concurrent.futures.ThreadPoolExecutor(STREAMS)

    def execute(self, requests):
        for request in requests:
            prompt = scalar(request, "prompt", b"").decode(errors="replace")
            max_tokens = scalar(request, "max_tokens", MAX_TOKENS)
            choices = random.Random(scalar(request, "seed", None))
            self.pool.submit(respond, request.get_response_sender(), self.story(prompt, max_tokens, choices))
        # Returns no responses: the senders send them.

    def story(self, prompt, max_tokens, choices):
        """The words and punctuation marks that go on from a prompt."""
        last, here = ["", "", *tokenize(prompt)][-2:]
        for _ in range(max_tokens):
            followers = self.followers.get((last, here)) or self.followers.get(here) or self.tokens
            last, here = here, choices.choice(followers)
            yield here if here in ".,;" else f" {here}"

    def finalize(self):
        self.pool.shutdown()


def respond(sender, tokens):
    """Sends tokens until there are no more, until the client has cancelled, or until something fails."""
    error = None
    try:
        for count, token in enumerate(tokens):
            if sender.is_cancelled():
                pb_utils.Logger.log_info(f"cancelled after {count} tokens")
                error = pb_utils.TritonError("the client has cancelled", pb_utils.TritonError.CANCELLED)
                break
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("token", np.array([token.encode()], np.object_))]))
    except Exception as problem:  # nobody else would tell the client
        error = pb_utils.TritonError(f"{type(problem).__name__}: {problem}")
    final = pb_utils.InferenceResponse(error=error) if error else None
    sender.send(final, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


def tokenize(text):
    return re.findall(r"\w+|[.,;]", text)


def scalar(request, name, default):
    """The only element of an optional input."""
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return default if tensor is None else tensor.as_numpy().item()
