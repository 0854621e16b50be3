"""The executions of a model.py, and what is said of one that fails."""

import asyncio
import gc
import re
import weakref
from pathlib import Path

import pytest

from model_files import ECHO, HEAD, Handle, Make, loader, refused, requests
from modserve.backends.python.worker import modules
from modserve.backends.python.worker.errors import ModelError


@pytest.fixture
def loaded(tmp_path: Path) -> Make:
    return loader(tmp_path)


def test_an_execution(loaded: Make) -> None:
    made = loaded(ECHO)
    assert (made.is_async, made.has_is_ready) == (False, False)
    handle = Handle()
    batch = requests(3, handle)
    responses = made.execute(batch)
    del batch
    outputs = [[(t.name(), t.as_numpy().tolist()) for t in r.output_tensors()] for r in responses if r is not None]
    assert outputs == [[("O", [i + 1, i + 1])] for i in range(3)]
    assert handle.events == []
    made.finalize()
    assert refused(lambda: made.execute(requests())).message == "the model is not initialized"


def test_initialize_and_finalize(loaded: Make, tmp_path: Path) -> None:
    made = loaded(
        """
        def initialize(self, args):
            self.name, self.directory = args["model_name"], pb_utils.get_model_dir()
        def execute(self, requests):
            return [pb_utils.InferenceResponse([], pb_utils.TritonError(self.name + self.directory)) for _ in requests]
        def finalize(self):
            open(pb_utils.get_model_dir() + "/finalized", "w").close()
        """
    )
    response = made.execute(requests())[0]
    assert response is not None
    error = response.error()
    assert error is not None
    assert error.message() == f"m{tmp_path}/m/1"
    made.finalize()
    assert (tmp_path / "m" / "1" / "finalized").exists()


def test_nothing_of_an_execution_is_kept(loaded: Make) -> None:
    made = loaded(ECHO.replace("return", "if not requests[0].flags(): 1/0\n    return"))
    for flags in (0, 1):
        batch = requests(1, flags=flags)
        gone = weakref.ref(batch[0])
        gc.disable()
        try:
            made.execute(batch)
        except ModelError as error:
            kept = error
        del batch
        gc.enable()
        assert gone() is None
    assert "division" in kept.message


@pytest.mark.parametrize(
    ("raised", "code", "text"),
    [
        ("raise ValueError('bad shape')", "INTERNAL", "ValueError: bad shape"),
        ("raise pb_utils.TritonModelException('no')", "INTERNAL", "TritonModelException: no"),
        (
            "raise pb_utils.TritonModelException(pb_utils.TritonError('n', pb_utils.TritonError.NOT_FOUND))",
            "NOT_FOUND",
            "n",
        ),
        ("raise pb_utils.TritonError('no', pb_utils.TritonError.INVALID_ARG)", "INVALID_ARG", "TritonError: no"),
        ("raise type('E', (pb_utils.TritonError,), {'__init__': lambda self: None})", "INTERNAL", "E: "),
        ("raise type('E', (pb_utils.TritonModelException,), {'__init__': lambda self: None})", "INTERNAL", "E: "),
        ("sys.exit(3)", "INTERNAL", "SystemExit: 3"),
        ("raise KeyboardInterrupt", "INTERNAL", "KeyboardInterrupt: "),
        ("raise GeneratorExit", "INTERNAL", "GeneratorExit: "),
        ("raise type('E', (Exception,), {'__str__': lambda self: 1/0})", "INTERNAL", "E: <its text cannot be produced"),
        ("raise ValueError('x' * 10000)", "INTERNAL", "ValueError: " + "x" * 4096 + "…"),
    ],
)
def test_an_exception(loaded: Make, tmp_path: Path, raised: str, code: str, text: str) -> None:
    made = loaded(f"def execute(self, requests):\n    self.fail()\ndef fail(self):\n    {raised}")
    failed = refused(lambda: made.execute(requests()))
    path = tmp_path / "m" / "1" / "model.py"
    assert failed.code == code
    assert failed.message.startswith("Failed to process the request(s) for model 'm', message: ")
    assert failed.message.endswith("\n\nAt:\n  model.py(9): fail\n  model.py(7): execute\n")
    assert text in failed.message
    assert f'File "{path}", line 9, in fail' in failed.traceback


def test_the_place_of_a_wrong_argument_is_in_the_model(loaded: Make) -> None:
    made = loaded("def execute(self, requests):\n    return [pb_utils.InferenceResponse([3])]")
    failed = refused(lambda: made.execute(requests()))
    assert "element 0 is int" in failed.message
    assert failed.message.endswith("\n\nAt:\n  model.py(7): execute\n")


@pytest.mark.parametrize(
    ("returned", "text"),
    [
        ("(1, 2)", "Expected a list in the execute return, found type '<class 'tuple'>'."),
        ("[]", r"Number of InferenceResponse objects do not match .* size is:2, and InferenceResponse\(s\) size is:0"),
        ("[1, 2]", "Expected an 'InferenceResponse' object in the execute function return list, found type"),
    ],
)
def test_what_execute_may_not_return(loaded: Make, returned: str, text: str) -> None:
    handle = Handle()
    made = loaded(f"def execute(self, requests):\n    return {returned}")
    failed = refused(lambda: made.execute(requests(2, handle)))
    assert re.search(text, failed.message, re.DOTALL)
    assert failed.message.startswith("Failed to process the request(s) for model 'm', message: ")
    assert failed.code == "INTERNAL"
    assert handle.events == []


def test_a_model_may_empty_the_list_of_requests(loaded: Make) -> None:
    made = loaded(
        """
        def execute(self, requests):
            responses = []
            while requests:
                requests.pop()
                responses.append(pb_utils.InferenceResponse([]))
            return responses
        """
    )
    assert len(made.execute(requests(2))) == 2


def test_responses_through_the_sender(loaded: Make) -> None:
    handle = Handle()
    made = loaded(
        """
        def execute(self, requests):
            requests[0].get_response_sender().send(pb_utils.InferenceResponse([]), 1)
            self.later = requests[1].get_response_sender()
            return [None, None]
        """
    )
    batch = requests(2, handle)
    assert made.execute(batch) == [None, None]
    assert handle.events == [("response", True)]
    del batch
    assert handle.events == [("response", True)]
    made.finalize()
    assert handle.events == [("response", True), "gone"]


def test_no_response_at_all(loaded: Make) -> None:
    handle = Handle()
    assert loaded("def execute(self, requests): pass").execute(requests(1, handle)) == [None]
    assert handle.events == ["gone"]


def test_a_response_in_both_ways(loaded: Make) -> None:
    handle = Handle()
    made = loaded(
        """
        def execute(self, requests):
            requests[0].get_response_sender().send(pb_utils.InferenceResponse([]), 1)
            return [pb_utils.InferenceResponse([])]
        """
    )
    (failed,) = made.execute(requests(1, handle))
    assert failed is not None
    error = failed.error()
    assert error is not None
    assert "Non-decoupled model cannot send more than one response" in error.message()
    assert handle.events == [("response", True)]


def test_nothing_is_sent_after_the_response(loaded: Make) -> None:
    made = loaded(
        """
        def execute(self, requests):
            self.requests = requests
            return [pb_utils.InferenceResponse([])]
        def is_ready(self):
            self.requests[0].get_response_sender().send(pb_utils.InferenceResponse([]))
        """
    )
    made.execute(requests())
    assert "Response sender has been closed" in refused(made.is_ready).message


def test_nothing_is_sent_after_a_failure(loaded: Make) -> None:
    handle = Handle()
    made = loaded(
        """
        def execute(self, requests):
            self.sender = requests[0].get_response_sender()
            raise ValueError
        def is_ready(self):
            self.sender.send(pb_utils.InferenceResponse([]))
        """
    )
    refused(lambda: made.execute(requests(1, handle, decoupled=True)))
    assert "Response sender has been closed" in refused(made.is_ready).message
    made.finalize()
    assert handle.events == []


def test_rescheduling(loaded: Make) -> None:
    handle = Handle()
    made = loaded(
        """
        def execute(self, requests):
            requests[0].set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            return [pb_utils.InferenceResponse([]) if requests[0].flags() else None, pb_utils.InferenceResponse([])]
        """
    )
    responses = made.execute(requests(2, handle))
    assert [response is None for response in responses] == [True, False]
    assert handle.events == ["again"]
    failed = refused(lambda: made.execute(requests(2, handle, flags=1)))
    assert "Expected a None object in the execute function return list for reschduled request" in failed.message
    assert handle.events == ["again"]


def test_decoupled(loaded: Make) -> None:
    handle = Handle()
    made = loaded(
        """
        def execute(self, requests):
            for request in requests:
                sender = request.get_response_sender()
                for _ in range(2):
                    sender.send(pb_utils.InferenceResponse([]))
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            return [1] if requests[0].flags() else None
        """
    )
    three = [("response", False), ("response", False), ("end", True)]
    assert made.execute(requests(1, handle, decoupled=True)) == [None]
    assert handle.events == three
    failed = refused(lambda: made.execute(requests(1, handle, decoupled=True, flags=1)))
    assert "is using the decoupled mode and the execute function must return None" in failed.message


ASYNC = ECHO.replace("def", "async def").replace(
    "    return", "    await __import__('asyncio').sleep(0)\n    return", 1
)


async def test_coroutines(loaded: Make) -> None:
    made = loaded(ASYNC)
    assert made.is_async
    both = await asyncio.gather(made.execute_async(requests()), made.execute_async(requests(2)))
    assert [len(responses) for responses in both] == [1, 2]
    failing = loaded("async def execute(self, requests):\n    raise ValueError('x')")
    with pytest.raises(ModelError, match="ValueError: x"):
        await failing.execute_async(requests())
    cancelled = loaded("async def execute(self, requests):\n    raise __import__('asyncio').CancelledError")
    with pytest.raises(ModelError, match="CancelledError"):
        await cancelled.execute_async(requests())


async def test_a_coroutine_can_be_cancelled(loaded: Make) -> None:
    made = loaded("async def execute(self, requests):\n    await __import__('asyncio').sleep(100)")
    by_itself, by_the_host = [asyncio.ensure_future(made.execute_async(requests())) for _ in range(2)]
    await asyncio.sleep(0)
    by_itself.cancel()
    with pytest.raises(ModelError, match="CancelledError"):
        await by_itself
    made.stopping = True
    by_the_host.cancel()
    with pytest.raises(asyncio.CancelledError):
        await by_the_host


async def test_a_decoupled_coroutine_may_return_anything(loaded: Make) -> None:
    handle = Handle()
    made = loaded("async def execute(self, requests):\n    return []")
    assert await made.execute_async(requests(1, handle, decoupled=True)) == [None]
    assert handle.events == ["gone"]


def test_a_coroutine_out_of_a_plain_method(loaded: Make) -> None:
    made = loaded(ASYNC.replace("execute", "run") + "\ndef execute(self, requests):\n    return self.run(requests)")
    assert not made.is_async
    for _ in range(2):
        assert len(made.execute(requests(2))) == 2
    made.finalize()


@pytest.mark.parametrize("prefix", ["", "async "])
async def test_readiness(loaded: Make, prefix: str) -> None:
    made = loaded(f"{ECHO}\n{prefix}def is_ready(self):\n    return self.ready")
    assert made.has_is_ready
    vars(made._instance)["ready"] = False
    assert not await asyncio.to_thread(made.is_ready)
    assert not await made.is_ready_async()
    vars(made._instance)["ready"] = "yes"
    for failed in (asyncio.to_thread(made.is_ready), made.is_ready_async()):
        with pytest.raises(ModelError, match=r"must return a boolean value, not str \(.*model.py\(\d+\)\)"):
            await failed
    del vars(made._instance)["ready"]
    for failed in (asyncio.to_thread(made.is_ready), made.is_ready_async()):
        with pytest.raises(ModelError, match="AttributeError"):
            await failed
    silent = loaded(ECHO)
    assert silent.is_ready()
    assert await silent.is_ready_async()


def test_finalize_may_fail(loaded: Make) -> None:
    made = loaded(ECHO + "\ndef finalize(self):\n    1/0")
    assert "ZeroDivisionError" in refused(made.finalize).message
    assert made._instance is None
    loaded("", initialize=False, whole=f"{HEAD}class TritonPythonModel: pass").finalize()


def test_private_modules_are_forgotten(loaded: Make) -> None:
    made = loaded(ECHO)
    scope = made._scope
    assert scope.package in modules._scopes
    made.finalize()
    assert scope.package not in modules._scopes


@pytest.mark.parametrize("fails", ["__init__(self)", "initialize(self, args)"])
def test_what_is_not_initialized_is_not_finalized(loaded: Make, tmp_path: Path, fails: str) -> None:
    made = loaded(
        f"""
        def {fails}:
            raise ValueError("not today")
        def execute(self, requests): pass
        def finalize(self):
            open(pb_utils.get_model_dir() + "/finalized", "w").close()
        """,
        initialize=False,
    )
    assert refused(lambda: made.initialize({})).message.startswith("ValueError: not today")
    made.finalize()
    assert not (tmp_path / "m" / "1" / "finalized").exists()


def test_what_is_initialized_is_finalized_though_it_cannot_execute(loaded: Make, tmp_path: Path) -> None:
    made = loaded(
        """
        def finalize(self):
            open(pb_utils.get_model_dir() + "/finalized", "w").close()
        """,
        initialize=False,
    )
    assert "does not implement `execute` method" in refused(lambda: made.initialize({})).message
    made.finalize()
    assert (tmp_path / "m" / "1" / "finalized").exists()
