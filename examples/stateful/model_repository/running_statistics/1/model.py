"""Tells how unusual each value of a series is, compared with those before it in the same series.

A sequence model: the server sends all requests of a sequence to one instance, one after another, which keeps the
count, the mean and the sum of squared differences of each (Welford's method).
"""

import json
import math

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.most = int(config["sequence_batching"]["oldest"]["max_candidate_sequences"])
        self.states = {}

    def execute(self, requests):
        return [self.respond(request) for request in requests]

    def respond(self, request):
        start, end, sequence = (control(request, name) for name in ("START", "END", "CORRID"))
        state = (0, 0.0, 0.0) if start else self.states.pop(sequence)
        scores = []
        for value in pb_utils.get_input_tensor_by_name(request, "value").as_numpy().ravel().tolist():
            scores.append(score(state, value))
            state = updated(state, value)
        if not end:
            self.keep(sequence, state)
        count, mean, _ = state
        return pb_utils.InferenceResponse(
            [
                pb_utils.Tensor("score", np.array([scores], np.float32)),
                pb_utils.Tensor("count", np.array([[count]], np.int64)),
                pb_utils.Tensor("mean", np.array([[mean]], np.float64)),
                pb_utils.Tensor("deviation", np.array([[deviation(state)]], np.float64)),
            ]
        )

    def keep(self, sequence, state):
        """Puts the sequence last. The server has at most `most` under way: any more have been idle for too long."""
        self.states.pop(sequence, None)
        self.states[sequence] = state
        while len(self.states) > self.most:
            del self.states[next(iter(self.states))]


def updated(state, value):
    count, mean, squares = state
    new_mean = mean + (value - mean) / (count + 1)
    return count + 1, new_mean, squares + (value - mean) * (value - new_mean)


def deviation(state):
    count, _, squares = state
    return math.sqrt(squares / count) if count else 0.0


def score(state, value):
    """By how many standard deviations the value differs from the mean of those before it."""
    spread = deviation(state)
    return (value - state[1]) / spread if spread else 0.0


def control(request, name):
    return pb_utils.get_input_tensor_by_name(request, name).as_numpy().item()
