"""The engine's steps, and responses to requests as tokens come.

A step keeps the interpreter's lock, so that no other thread could take requests meanwhile: steps run on the thread that
reads them, and between two steps all that have come begin. An engine that raises in a step has an unknown state: all
requests fail and the process ends, which the server replaces.
"""

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import openvino

from ..contract import UNFINISHED, GenerationCall, Replies, RequestError
from ..figures import Figures, clock
from ..generation import Generation
from .generation import GenaiOutput
from .grammars import GrammarChecker, shorten_error
from .sampling import SamplingParameters, generation_config, read, seed_of
from .texts import Vocabulary

_PART = 2048
"""Characters: texts of this length are below every tokenizer's maximum."""
_LONGEST = 1 << 31


class GenerationEngine:
    """Implementation of `contract.GenerationEngineApi`. `log` takes a line."""

    def __init__(
        self,
        genai: Any,
        pipeline: Any,
        max_outputs: int,
        max_tokens: int,
        figures: Figures,
        replies: Replies,
        log: Callable[[str], None],
    ) -> None:
        self._genai = genai
        self._pipeline = pipeline
        self._tokenizer = pipeline.get_tokenizer()
        self._vocabulary = Vocabulary(self._tokenizer)
        self._checker = GrammarChecker(genai, self._tokenizer)
        self.room = max_outputs
        self._context = max_tokens
        self._figures = figures
        self._replies = replies
        self._log = log
        config = pipeline.get_config()
        self._eos = config.eos_token_id if config.eos_token_id >= 0 else self._tokenizer.get_eos_token_id()
        self._stops = frozenset(config.stop_token_ids)
        self._bos = self._tokenizer.get_bos_token() or ""
        self._number = 0
        self._running: list[Generation[GenaiOutput]] = []
        self._count = 0
        """Outputs of these that are not finished."""
        self._reported = 0
        """Value of `_count` in the last report."""

    def close(self) -> None:
        while self.turn():
            pass

    # Requests

    def begin(self, call: GenerationCall) -> None:
        try:
            sampling = read(call.sampling, strict=call.strict)
            prompt = self.tokens_of(call.text)
            self.check(sampling)
            self.add(call, prompt, sampling)
        except RuntimeError as error:
            raise RequestError(f"the engine does not take the request: {shorten_error(error)}") from None

    def tokens_of(self, text: str) -> list[int]:
        """Tokenise a prompt. Raises RequestError. A prompt that begins with the beginning token gets no other."""
        special = not (self._bos and text.startswith(self._bos))
        ids = self._tokenizer.encode(text, add_special_tokens=special).input_ids.data[0].tolist() if text else []
        if not ids:
            raise RequestError("text_input is empty: it has no token to go on from")
        if self._context and len(ids) >= self._context:
            count = max(len(ids), self._length_of(text))
            raise RequestError(
                f"text_input has {count} tokens, but the model's context ('max_model_len') has {self._context}"
            )
        return list(ids)

    def _length_of(self, text: str) -> int:
        """Count the tokens of a text in parts, since the tokenizer truncates long ones."""
        count = start = 0
        while start < len(text):
            space = text.rfind(" ", start + 1, start + _PART)
            end = space if space > 0 and start + _PART < len(text) else start + _PART
            part = self._tokenizer.encode(text[start:end], add_special_tokens=False)
            count += len(part.input_ids.data[0].tolist())
            start = end
        return count

    def check(self, sampling: SamplingParameters) -> None:
        """Check the grammar. Raises RequestError for one that the engine cannot compile."""
        if sampling.grammar is not None:
            self._checker.check(sampling.grammar)

    def add(self, call: GenerationCall, prompt: Sequence[int], sampling: SamplingParameters) -> None:
        """Begin to generate. Raises RuntimeError if the engine does not take the request."""
        outputs = [GenaiOutput(prompt, sampling, self._vocabulary) for _ in range(sampling.n)]
        generation = Generation(call, outputs, len(prompt))
        most = self._context - len(prompt) if self._context else _LONGEST
        tokens = most if sampling.max_tokens is None else min(sampling.max_tokens, most)
        config = generation_config(self._genai, sampling, self._eos, self._stops, tokens)
        ids = openvino.Tensor(np.array([prompt], np.int64))
        chance = random.getrandbits(32)
        for index, output in enumerate(generation.outputs):
            config.rng_seed = seed_of(sampling, index, chance)
            self._number += 1
            output.handle = self._pipeline.add_request(self._number, ids, config)
        self._figures.count("prompt_tokens_total", len(prompt))
        self._running.append(generation)
        self._count += len(generation.outputs)

    # Steps

    def turn(self) -> bool:
        """Run a step. Raises what the engine raises, when all requests have failed: this process cannot go on."""
        try:
            if self._running:
                self._step()
        except Exception as error:
            self._give_up(error)
            raise
        return bool(self._running)

    def _step(self) -> None:
        for generation in self._running:
            if generation.call.request.is_cancelled():
                self._end(generation)
                self._replies.fail(generation.call.sender, "CANCELLED", "the request was cancelled")
        self._pipeline.step()
        at = clock()
        fresh = self._read(at)
        self._decode(fresh)
        for generation in self._running:
            if generation.call.sender.is_closed():
                continue
            final = generation.finished
            if generation.is_due:
                self._replies.send(generation.call.sender, generation.tensors(), final)
            if final:
                self._figures.observe("e2e_request_latency_seconds", at - generation.call.at)
        self._settle(at)
        if not self._running and self._pipeline.has_non_finished_requests():
            self._pipeline.step()  # it frees the cache of what was stopped at a text

    def _read(self, at: float) -> list[tuple[GenaiOutput, str]]:
        """Read the engine's results: outputs that have new tokens or have ended, and why."""
        statuses = self._genai.GenerationStatus
        fresh, tokens = [], 0
        for generation in self._running:
            for output in generation.outputs:
                if output.finished:
                    continue
                count, reason = output.count, UNFINISHED
                handle = output.handle
                while handle.can_read():
                    for part in handle.read().values():
                        output.add(part.generated_ids, part.generated_log_probs)
                        reason = self._reason(part.finish_reason)
                if reason == UNFINISHED and handle.get_status() != statuses.RUNNING:
                    if handle.get_status() == statuses.IGNORED:
                        self._fail_for_memory(generation)
                        break
                    reason = "stop"
                if output.count > count:
                    if output.last_at:
                        self._figures.next_tokens((at - output.last_at) / (output.count - count))
                    else:
                        self._figures.first_token(at - generation.call.at)
                    output.last_at = at
                    tokens += output.count - count
                if output.count > count or reason != UNFINISHED:
                    fresh.append((output, reason))
        self._figures.count("generation_tokens_total", tokens)
        return fresh

    def _reason(self, reason: Any) -> str:
        reasons = self._genai.GenerationFinishReason
        return "length" if reason == reasons.LENGTH else UNFINISHED if reason == reasons.NONE else "stop"

    def _decode(self, fresh: Sequence[tuple[GenaiOutput, str]]) -> None:
        """Decode all texts of a step in one call, which costs little more than one of them."""
        rows: list[list[int]] = []
        spans = []
        for output, _ in fresh:
            begin = len(rows)
            rows += output.tokens.rows()
            spans.append((begin, len(rows)))
        texts = self._tokenizer.decode(rows) if rows else []
        for (output, reason), (begin, end) in zip(fresh, spans, strict=False):
            output.say(texts[begin:end], reason)
            if output.finished:
                if reason == UNFINISHED:  # at a text, or in endless white space
                    output.handle.stop()
                self._figures.count_end(output.reason)

    def _fail_for_memory(self, generation: Generation[GenaiOutput]) -> None:
        self._end(generation)
        self._replies.fail(
            generation.call.sender,
            "UNAVAILABLE",
            "the KV cache of the model has no room for the request's "
            f"{generation.prompt_length + max(output.count for output in generation.outputs)} tokens: the parameters "
            "'cache_size' (GB) and 'num_kv_blocks' allow more",
        )

    def _end(self, generation: Generation[GenaiOutput]) -> None:
        for output in generation.outputs:
            if not output.finished:
                output.reason = "abort"
                output.handle.cancel()

    def _settle(self, at: float) -> None:
        """Forget finished requests, and report."""
        self._running = [each for each in self._running if not each.finished]
        self._count = sum(not output.finished for each in self._running for output in each.outputs)
        if self._count == self._reported and not self._figures.is_due(at):
            return
        self._reported = self._count
        metrics = self._pipeline.get_metrics()
        running = min(self._count, metrics.scheduled_requests)
        self._figures.set("num_requests_running", running)
        self._figures.set("num_requests_waiting", self._count - running)
        self._figures.set("kv_cache_usage_perc", metrics.cache_usage / 100 if self._count else 0.0)
        self._figures.report(at)

    def _give_up(self, error: Exception) -> None:
        reason = shorten_error(error)
        self._log(f"the engine failed, and its process ends: {type(error).__name__}: {reason}")
        for generation in self._running:
            if not generation.call.sender.is_closed():
                self._replies.fail(generation.call.sender, "INTERNAL", f"the engine failed: {reason}")
