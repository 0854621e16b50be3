"""Python models with all kinds of faults: their callers hear what happened, nobody else notices, and nothing is left.

One server has all the faulty models. They break at the same time, while two models that nothing is wrong with are asked
all the time; what came of it is compared afterwards. Two more servers end in the middle of it.
"""

import json
import re
import signal
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
from python_faults import (
    MARK,
    MODEL,
    Neighbour,
    Outcome,
    at_once,
    call,
    infer,
    is_right,
    mappings,
    metric,
    named_memory,
    open_files,
    processes,
    write_faulty,
    zombies_of,
)
from server_process import LOADED, ServerProcess, eventually, started

STOP = "--backend-config=python,stop-timeout-seconds=1"
ERRORS = (r" ERROR +modserve\.(execution|backends\.python|repository)\.", r"Traceback \(most recent call last\)")

# Of `faulty_model`: what ends the process, and what the caller hears.
LOST = "model '{name}', instance '{name}_0_0' was lost: its process \\d+ "
NO_FRAME = (
    "was killed: it sent data that the server does not understand: ValueError: a frame has one of the known kinds .*"
)
SLOW = r"was killed: an execution took longer than 1 s \('EXECUTION_TIMEOUT_SECONDS'\)"
BROKEN = "exited with status 1; its last output:\n  the connection to the server has ended: .*"
CRASHES = {
    "segfault": "was killed by SIGSEGV; its last output:\n  about to read address 0\n  Fatal Python error: .*\n"
    '.*/model.py", line \\d+ in segfault\n.*',
    "abort": 'was killed by SIGABRT; .*/model.py", line \\d+ in abort\n.*',
    "exit_at_once": "exited with status 3; its last output:\n  the last words",
    "killed": "was killed by SIGKILL",
    "killed_by_a_thread": "was killed by SIGKILL",
    "terminated": "was killed by SIGTERM",
    "forks_and_dies": "exited with status 7",
    "closes_files": BROKEN,
    "shuts_the_connection": BROKEN,
    "writes_garbage": NO_FRAME,
    "writes_zeros": NO_FRAME,
    "announces_an_endless_frame": NO_FRAME,
    "becomes_another_program": "closed its connection and was killed",
    "sleeps": SLOW,
    "stops_itself": SLOW,
    "holds_the_interpreter": SLOW,
}
TIMED = 'parameters { key: "EXECUTION_TIMEOUT_SECONDS" value { string_value: "1" } }'

# What fails the request alone: the first line of the error. Where the model's own code raised, its place follows.
FAILED = "Failed to process the request(s) for model 'faulty', message: "
RAISED = {
    "system_exit": "SystemExit: 4",
    "keyboard_interrupt": "KeyboardInterrupt: ",
    "out_of_memory": "MemoryError: Unable to allocate 2.00 GiB for an array with shape (2147483648,) and data type "
    "uint8",
    "recursion": "RecursionError: maximum recursion depth exceeded",
    "raises": "ValueError: the fault of line X",
    "raises_a_strange_exception": "StrangeError: <its text cannot be produced: RuntimeError>",
    "reads_stdin": "EOFError: EOF when reading a line",
}
REFUSED = {
    "nothing": "model 'faulty', instance 'faulty_0_0' released a request without a final response: `execute` returned "
    "None for it (no `return`?), and must return a list with one response for each request, or send them through the "
    "requests' response senders",
    "too_few": f"{FAILED}Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
    "InferenceRequest(s) size is:1, and InferenceResponse(s) size is:0",
    "too_many": f"{FAILED}Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
    "InferenceRequest(s) size is:1, and InferenceResponse(s) size is:2",
    "no_list": f"{FAILED}Expected a list in the execute return, found type "
    "'<class 'modserve_worker.response.InferenceResponse'>'.",
    "no_response": f"{FAILED}Expected an 'InferenceResponse' object in the execute function return list, found type "
    "'<class 'modserve_worker.tensor.Tensor'>'.",
    "an_exception": f"{FAILED}Expected an 'InferenceResponse' object in the execute function return list, found type "
    "'<class 'ValueError'>'.",
    "wrong_name": f"{FAILED}The response has the outputs ['OUTPUTT'], and none of those that were requested: "
    "['OUTPUT'].",
}
HANDED_ON = {"wrong_type": ("INT32", [1, 2]), "wrong_shape": ("FP32", [2]), "wrong_rows": ("FP32", [2, 2])}
"""Outputs that the configuration does not promise, as their callers get them."""
HARMLESS = (
    "prints",
    "logs",
    "threads",
    "forks",
    "fork_returns",
    "changes_directory",
    "ignores_signals",
    "catches_signals",
    "closes_output",
)
"""Right responses before and after, in this order on one instance."""

HEAD = """
import asyncio, atexit, ctypes, os, subprocess, sys, threading, time
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
"""
EXECUTE = """
    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", one * 2)]) for one in inputs]
"""


def method(signature: str, body: str, decorator: str = "") -> str:
    return f"{HEAD}    {decorator}\n    def {signature}:\n        {body}\n{EXECUTE}"


def completing(body: str) -> str:
    return method("auto_complete_config(config)", body, "@staticmethod")


def initializing(body: str) -> str:
    return method("initialize(self, args)", body)


def finalizing(body: str) -> str:
    return method("finalize(self)", body)


# What does not load: the code, and the reason, in which P is the path of the model.py.
UNLOADABLE = {
    "syntax": ("x = (\n", r"Internal: SyntaxError: '\(' was never closed\n\nAt:\n  P\(1\): x = \(\n"),
    "no_class": ("x = 1\n", "Invalid argument: P has no class TritonPythonModel"),
    "import_raises": ("import os\nraise OSError('x')\n", r"Internal: OSError: x\n\nAt:\n  P\(2\): <module>\n"),
    "import_exits": ("import sys\nsys.exit('x')\n", r"Internal: SystemExit: x\n\nAt:\n  P\(2\): <module>\n"),
    "import_dies": (
        "import os\nos._exit(9)\n",
        r"Unavailable: when it loaded model.py, its process \d+ exited with status 9",
    ),
    "import_segfaults": (
        "import ctypes\nctypes.string_at(0)\n",
        r'Unavailable: when it loaded model.py, its process \d+ was killed by SIGSEGV; .*"P", line 2 in <module>.*',
    ),
    "complete_raises": (
        completing("raise ValueError('x')"),
        r"Internal: ValueError: x\n\nAt:\n  P\(9\): auto_complete_config\n",
    ),
    "complete_returns_none": (
        completing("return None"),
        "Invalid argument: auto_complete_config function in model 'complete_returns_none' must return a valid "
        r"pb.ModelConfig object, not NoneType \(P\(7\)\)",
    ),
    "complete_dies": (
        completing("os._exit(5)"),
        r"Unavailable: in auto_complete_config, its process \d+ exited with status 5",
    ),
    "init_raises": (
        method("__init__(self)", "raise ValueError('x')"),
        r"Internal: ValueError: x\n\nAt:\n  P\(9\): __init__\n",
    ),
    "initialize_raises": (
        initializing("raise ValueError('x')"),
        r"Internal: ValueError: x\n\nAt:\n  P\(9\): initialize\n",
    ),
    "initialize_dies": (
        initializing("print('the last words', flush=True); os._exit(11)"),
        r"Unavailable: in initialize, its process \d+ exited with status 11; its last output:\n  the last words",
    ),
    "initialize_leaves_a_child": (
        initializing("subprocess.Popen(['sleep', '600']); os._exit(12)"),
        r"Unavailable: in initialize, its process \d+ exited with status 12",
    ),
    "initialize_takes_nothing": (
        method("initialize(self)", "pass"),
        r"Internal: TypeError: TritonPythonModel.initialize\(\) takes 1 positional argument but 2 were given"
        r"\n\nAt:\n  P\(8\): initialize\n",
    ),
    "no_execute": (
        HEAD + "    pass\n",
        "Invalid argument: Python model P does not implement `execute` method.",
    ),
}

# Faults at the end: the code, and what the log says of it; nothing where there is nothing to say.
ENDINGS = {
    "finalize_raises": (finalizing("raise ValueError('in finalize')"), "ValueError: in finalize"),
    "finalize_hangs": (finalizing("time.sleep(600)"), "'finalize_hangs_0_0' did not end within 1 s and is killed"),
    "finalize_spins": (
        finalizing("ctypes.PyDLL(None).pause()"),
        "'finalize_spins_0_0' did not end within 1 s and is killed",
    ),
    "finalize_dies": (finalizing("os._exit(13)"), ""),
    "finalize_segfaults": (finalizing("ctypes.string_at(0)"), "Fatal Python error: Segmentation fault"),
    "finalize_prints": (finalizing("print('word ' * 400_000)"), "word word"),
    "finalize_stops": (
        finalizing("os.kill(os.getpid(), 19)"),
        "'finalize_stops_0_0' did not end within 1 s and is killed",
    ),
    "exit_hangs": (
        finalizing("atexit.register(time.sleep, 600)"),
        "'exit_hangs_0_0' did not end within 1 s and is killed",
    ),
    "thread_left": (finalizing("threading.Thread(target=time.sleep, args=(600,)).start()"), ""),
    "child_left": (finalizing("os.fork() or time.sleep(600)"), ""),
    "program_left": (finalizing("os.system('sleep 600 &')"), ""),
}
READY = {
    "ready_raises": (method("is_ready(self)", "raise ValueError('in is_ready')"), "ValueError: in is_ready"),
    "ready_dies": (method("is_ready(self)", "os._exit(17)"), "exited with status 17"),
    "ready_hangs": (method("is_ready(self)", "time.sleep(600)"), "has not reported within 5 s whether it is ready"),
}
ASYNC = {
    "async_raises": ("raise ValueError('x')", 500, r"Failed .*: ValueError: x\n\nAt:\n  .*\(9\): execute\n"),
    "async_exits": ("sys.exit(3)", 500, r"Failed .*: SystemExit: 3\n\nAt:\n  .*\(9\): execute\n"),
    "async_dies": ("os._exit(19)", 503, r"model .* was lost: its process \d+ exited with status 19"),
}
ONCE = HEAD + (
    "    def initialize(self, args):\n"
    "        path = os.path.join(args['model_repository'], 'begun')\n"
    "        if os.path.exists(path):\n            raise ValueError('not twice')\n"
    "        open(path, 'w').close()\n"
    "    def execute(self, requests):\n        os._exit(23)\n"
)


@dataclass
class Story:
    """What happened in the server with all the faults."""

    outcomes: dict[str, Outcome] = field(default_factory=dict)
    later: dict[str, Outcome] = field(default_factory=dict)
    """The next request to the same model."""
    restarts: dict[str, float] = field(default_factory=dict)
    loads: dict[str, Outcome] = field(default_factory=dict)
    ready: dict[str, Outcome] = field(default_factory=dict)
    paths: dict[str, Path] = field(default_factory=dict)
    neighbours: list[Neighbour] = field(default_factory=list)
    before: tuple[object, ...] = ()
    after: tuple[object, ...] = ()
    left: dict[int, str] = field(default_factory=dict)
    memory: list[str] = field(default_factory=list)
    log: str = ""


def load(server: ServerProcess, name: str) -> Outcome:
    return call(server.http_port, f"repository/models/{name}/load", {}, 60.0)


def unload(server: ServerProcess, name: str) -> None:
    call(server.http_port, f"repository/models/{name}/unload", {}, 60.0)
    # The names of the shared memory of its instances, or of its first one, before that has a name.
    eventually(lambda: not any(f"'{name}'" in each for each in open_files(server.pid)), 40.0)  # given up after 60 s


def again(server: ServerProcess, story: Story, name: str) -> None:
    """Ask a model whose process has died until it responds."""

    def responds() -> bool:
        story.later[name] = infer(server.http_port, name)
        return is_right(story.later[name])

    eventually(responds)


def crash(server: ServerProcess, story: Story, name: str) -> None:
    story.outcomes[name] = infer(server.http_port, name, name)
    again(server, story, name)


def misbehave(server: ServerProcess, story: Story, names: list[str]) -> None:
    """One instance after the other fault."""
    for name in names:
        story.outcomes[name] = infer(server.http_port, "faulty", name)
        story.later[name] = infer(server.http_port, "faulty")


def keep(server: ServerProcess, story: Story) -> None:
    story.outcomes["sends_after_the_end"] = infer(server.http_port, "sender", "sends_after_the_end")
    story.outcomes["keeps_sender"] = infer(server.http_port, "sender", "keeps_sender", 0.5)
    story.later["keeps_sender"] = infer(server.http_port, "sender")


def die_for_good(server: ServerProcess, story: Story) -> None:
    port = server.http_port
    story.outcomes["once"] = infer(port, "once")
    server.wait_for("'once_0_0' was lost and cannot be replaced")
    story.later["once"] = infer(port, "once")
    story.ready["once"] = call(port, "models/once/ready")
    index = call(port, "repository/index", {})
    story.ready["index"] = Outcome(index.status, next(part for part in index.text.split("}") if '"once"' in part))
    story.ready["server"] = call(port, "health/ready")


def ask_ready(server: ServerProcess, story: Story, name: str) -> None:
    story.ready[name] = call(server.http_port, f"models/{name}/ready")


def execute_async(server: ServerProcess, story: Story, name: str) -> None:
    story.outcomes[name] = infer(server.http_port, name)


def state(server: ServerProcess, mark: str) -> tuple[object, ...]:
    return open_files(server.pid), mappings(server.pid), len(processes(mark)), zombies_of(server.pid)


def is_empty(server: ServerProcess, mark: str) -> bool:
    return len(processes(mark)) == 1 and not any("memfd" in each for each in open_files(server.pid))


def write_all(repository: Path) -> list[str]:
    for name in CRASHES:
        write_faulty(repository, name, config=TIMED if CRASHES[name] is SLOW else "")
    write_faulty(repository, "pair", instances=2)
    for name in ("healthy", "faulty", "sender"):
        write_faulty(repository, name)
    coded = {name: row[0] for name, row in (UNLOADABLE | ENDINGS | READY).items()}
    for name, (body, _, _) in ASYNC.items():
        coded[name] = (
            f"{HEAD}    async def execute(self, requests):\n        await asyncio.sleep(0.01)\n        {body}\n"
        )
    for name, code in (coded | {"once": ONCE}).items():
        write_faulty(repository, name, code=code)
    return sorted(path.name for path in repository.iterdir())


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    repository = tmp_path_factory.mktemp("faults")
    names = write_all(repository)
    story, mark = Story(paths={name: repository / name / "1" / "model.py" for name in names}), uuid.uuid4().hex
    options = ["--model-control-mode=explicit", STOP, "--exit-timeout-secs=10"]
    with started(repository, options=options, environment={MARK: mark}) as server:
        server.wait_for(LOADED)
        load(server, "healthy")  # so that what is made once is there
        assert is_right(infer(server.http_port, "healthy"))
        call(server.http_port, "repository/models/healthy/unload", {})
        eventually(lambda: is_empty(server, mark))
        story.before = state(server, mark)
        act(server, story, names)
        story.memory = named_memory(mark)
        at_once(*[partial(unload, server, name) for name in names if name not in UNLOADABLE])
        eventually(lambda: is_empty(server, mark))
        story.after = state(server, mark)
        story.left = {pid: text for pid, text in processes(mark).items() if pid != server.pid}
        server.stop(errors=ERRORS)
        story.log = server.log
    return story


def act(server: ServerProcess, story: Story, names: list[str]) -> None:
    def load_one(name: str) -> None:
        story.loads[name] = load(server, name)

    at_once(*[partial(load_one, name) for name in names])
    story.neighbours = [Neighbour(server.http_port, name) for name in ("healthy", "pair")]
    with story.neighbours[0].asking(), story.neighbours[1].asking():
        at_once(
            *[partial(crash, server, story, name) for name in CRASHES],
            *[partial(ask_ready, server, story, name) for name in READY],
            *[partial(execute_async, server, story, name) for name in ASYNC],
            partial(misbehave, server, story, [*RAISED, *REFUSED, *HANDED_ON, "raises_a_long_text", *HARMLESS]),
            partial(keep, server, story),
            partial(die_for_good, server, story),
        )
        # The other of two instances goes on meanwhile; the one asked for the fault may be either.
        story.outcomes["pair"] = infer(server.http_port, "pair", "segfault")
        story.later["pair"] = infer(server.http_port, "pair")
        eventually(lambda: not metric(server.metrics_port, "modserve_instances", model="pair", state="lost"))
    port = server.metrics_port
    story.restarts = {name: metric(port, "modserve_instance_restarts_total", model=name) for name in names}
    story.restarts["once lost"] = metric(port, "modserve_instances", model="once", state="lost")


# While the models are loaded


@pytest.mark.parametrize("name", CRASHES)
def test_a_process_that_dies_is_replaced(story: Story, name: str) -> None:
    outcome = story.outcomes[name]
    assert outcome.status == 503
    assert re.fullmatch(LOST.format(name=name) + CRASHES[name], outcome.text, re.DOTALL), outcome.text
    assert is_right(story.later[name])
    assert story.restarts[name] == 1
    first_line = re.escape(outcome.text.splitlines()[0])
    assert re.search(f" ERROR +modserve.execution.instance_set: {first_line}", story.log)
    assert "a new one will be made in 1 s" in story.log
    assert f"model '{name}': instance '{name}_0_0' runs again" in story.log


@pytest.mark.parametrize("name", RAISED)
def test_an_exception_fails_its_request_alone(story: Story, name: str) -> None:
    outcome = story.outcomes[name]
    what, _, place = outcome.text.partition("\n\nAt:\n")
    assert (outcome.status, what) == (500, FAILED + RAISED[name])
    line = re.search(rf"^  model\.py\((\d+)\): {name}$", place, re.MULTILINE)
    assert line, place
    before = MODEL.read_text().splitlines()[: int(line[1])]
    assert [each for each in before if each.startswith("def ")][-1].startswith(f"def {name}(")
    assert re.search(rf'File "{story.paths["faulty"]}", line \d+, in {name}\\n', story.log), "no traceback in the log"
    assert is_right(story.later[name])


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_responses_fail_their_request_alone(story: Story, name: str) -> None:
    outcome = story.outcomes[name]
    text, _, place = outcome.text.partition("\n\nAt:\n")
    assert (outcome.status, text) == (500, REFUSED[name])
    if text.startswith(FAILED):
        line = MODEL.read_text().splitlines().index("    def execute(self, requests: list[Any]) -> Any:") + 1
        assert place == f"  model.py({line}): execute\n"
    assert is_right(story.later[name])


@pytest.mark.parametrize("name", HANDED_ON)
def test_outputs_that_are_not_as_configured_are_handed_on(story: Story, name: str) -> None:
    outcome = story.outcomes[name]
    assert outcome.status == 200
    (output,) = json.loads(outcome.text)["outputs"]
    assert (output["datatype"], output["shape"]) == HANDED_ON[name]
    assert is_right(story.later[name])


def test_the_log_says_once_that_an_output_is_not_as_configured(story: Story) -> None:
    (line,) = re.findall(r" WARNING +.*output 'OUTPUT' of model 'faulty'.*", story.log)
    assert "is of type INT32, but the model configuration says TYPE_FP32; it is passed on unchanged" in line


def test_a_long_text_is_cut(story: Story) -> None:
    outcome = story.outcomes["raises_a_long_text"]
    assert (outcome.status, len(outcome.text) < 6000) == (500, True)
    assert outcome.text.startswith(f"{FAILED}ValueError: long long")
    assert "): raises_a_long_text\n" in outcome.text
    assert max(map(len, re.findall(r"long long[long ]*", story.log))) < 20_000


@pytest.mark.parametrize("name", HARMLESS)
def test_what_does_no_harm(story: Story, name: str) -> None:
    assert is_right(story.outcomes[name])
    assert is_right(story.later[name])


def test_nothing_of_what_is_printed_is_lost(story: Story) -> None:
    who = "modserve.backends.python.output: model 'faulty', instance 'faulty_0_0'"
    assert len(re.findall(rf"{who}: x$", story.log, re.MULTILINE)) >= 80_000
    assert (
        len(re.findall(r"INFO +modserve.backends.python.instance: .* '?faulty_0_0'?: \d+$", story.log, re.M)) == 20_000
    )


def test_senders(story: Story) -> None:
    outcome = story.outcomes["sends_after_the_end"]
    assert (outcome.status, '"data":[0.0]' in outcome.text) == (200, True)
    assert "in sends_after_the_end" in story.log
    assert story.outcomes["keeps_sender"].status == 0
    assert is_right(story.later["keeps_sender"])


@pytest.mark.parametrize("name", ASYNC)
def test_asynchronous_models(story: Story, name: str) -> None:
    _, status, text = ASYNC[name]
    outcome = story.outcomes[name]
    assert outcome.status == status
    assert re.fullmatch(text, outcome.text, re.DOTALL), outcome.text


@pytest.mark.parametrize("name", READY)
def test_readiness_that_cannot_be_told(story: Story, name: str) -> None:
    assert story.ready[name].status == 400
    assert READY[name][1] in story.log


def test_nobody_else_notices(story: Story) -> None:
    for neighbour in story.neighbours:
        # What was under way on the instance that ended ends with it.
        lost = [each for each in neighbour.wrong if "was lost: its process" in each.text]
        assert len(lost) <= (neighbour.model == "pair")
        assert neighbour.wrong == lost
        assert neighbour.count > 20


def test_the_other_instance_goes_on(story: Story) -> None:
    outcome = story.outcomes["pair"]
    assert re.match(
        r"model 'pair', instance 'pair_0_[01]' was lost: its process \d+ was killed by SIGSEGV", outcome.text
    )
    assert is_right(story.later["pair"])
    assert story.restarts["pair"] == 1


def test_a_model_that_cannot_be_made_anew(story: Story) -> None:
    who = "model 'once', instance 'once_0_0' was lost"
    assert story.outcomes["once"].status == story.later["once"].status == 503
    assert story.outcomes["once"].text.startswith(f"{who}: its process ")
    reason = f"{who} and cannot be replaced: ValueError: not twice"
    assert story.later["once"].text.endswith(reason)
    place = re.escape(rf"{reason}\n\nAt:\n  {story.paths['once']}(10): initialize\n")
    assert re.search(f" ERROR .*{place}; the next attempt is in 2 s", story.log)
    assert story.ready["once"].status == story.ready["server"].status == 400
    assert "cannot be replaced: ValueError: not twice" in story.ready["index"].text
    assert story.restarts["once lost"] == 1
    assert re.search("'once_0_0' was lost and cannot be replaced.*the next attempt is in 2 s", story.log, re.DOTALL)


@pytest.mark.parametrize("name", UNLOADABLE)
def test_what_cannot_be_loaded_says_why(story: Story, name: str) -> None:
    before = f"load failed for model '{name}': version 1 is at UNAVAILABLE state: "
    outcome = story.loads[name]
    assert outcome.status == 400
    assert outcome.text.startswith(before)
    pattern = re.sub(r"\bP\b", lambda _: re.escape(str(story.paths[name])), UNLOADABLE[name][1])
    assert re.fullmatch(pattern + ";\n", outcome.text[len(before) :], re.DOTALL), outcome.text


# When they are unloaded


@pytest.mark.parametrize("name", [*ENDINGS, *READY])
def test_an_end_that_goes_wrong(story: Story, name: str) -> None:
    assert story.loads[name].status == 200
    assert (ENDINGS | READY)[name][1] in story.log


def test_nothing_is_left_after_an_unload(story: Story) -> None:
    assert story.left == {}
    assert story.after == story.before
    assert story.memory == []


# When the server ends


UNRULY = ("sleeps", "holds_the_interpreter", "stops_itself", "forks", "threads", "ignores_signals", "keeps_sender")


@pytest.fixture
def unruly(tmp_path: Path) -> Iterator[tuple[ServerProcess, str]]:
    """A server with models in all states that nobody wants to stop, and a model that has not ended its load."""
    for name in UNRULY:
        write_faulty(tmp_path, name)
    write_faulty(tmp_path, "finalize_hangs", code=ENDINGS["finalize_hangs"][0])
    write_faulty(tmp_path, "hangs", code=initializing("print('it hangs', flush=True); time.sleep(600)"))
    options = ["--model-control-mode=explicit", STOP, "--exit-timeout-secs=3"]
    options += [f"--load-model={name}" for name in (*UNRULY, "finalize_hangs")]
    mark = uuid.uuid4().hex
    with started(tmp_path, options=options, environment={MARK: mark}) as server:
        server.wait_for(LOADED)
        at_once(*[partial(infer, server.http_port, name, name, 1.0) for name in UNRULY])
        call(server.http_port, "repository/models/hangs/load", {}, 0.5)
        server.wait_for("it hangs")
        assert len(processes(mark)) > len(UNRULY) + 2
        yield server, mark


def test_nothing_is_left_after_the_server(unruly: tuple[ServerProcess, str]) -> None:
    server, mark = unruly
    server.signal(signal.SIGTERM)
    server.wait(1, errors=[r" ERROR +modserve\.process\.listeners: Exit timeout expired"])
    eventually(lambda: not processes(mark))


def test_nothing_is_left_after_a_server_that_is_killed(unruly: tuple[ServerProcess, str]) -> None:
    server, mark = unruly
    server.signal(signal.SIGKILL)
    eventually(lambda: not processes(mark))
