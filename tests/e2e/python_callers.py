"""Texts of models that call other models, and of those that they call, for `test_python_calls`."""

PLAIN = """
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            a, b = [pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in ("A", "B")]
            if a[0] == 666:
                error = pb_utils.TritonError("666 is refused", pb_utils.TritonError.INVALID_ARG)
                responses.append(pb_utils.InferenceResponse(error=error))
                continue
            made = [pb_utils.Tensor("SUM", a + b), pb_utils.Tensor("DIFFERENCE", a - b)]
            responses.append(pb_utils.InferenceResponse(made))
        return responses
"""

_NOTE = """
def note(text):
    with open(PATH, "a") as file:
        file.write(text)
"""

SLOW = (
    _NOTE
    + """
import time

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            value = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            note("begun ")
            end = time.monotonic() + float(value.ravel()[0]) / 1000
            while time.monotonic() < end and not request.is_cancelled():
                time.sleep(0.005)
            note("cancelled " if request.is_cancelled() else "done ")
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.ones_like(value))]))
        return responses
"""
)

COUNT = (
    _NOTE
    + """
import time

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            (count,) = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            for number in range(count):
                if sender.is_cancelled():
                    note("cancelled ")
                    break
                if number == 13 and count <= 1000:
                    sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("13 is refused")))
                    break
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([number], np.int32))]))
                if count > 1000:
                    time.sleep(0.001)
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
)

CALLER = """
import asyncio
import os
import threading
import time

def noted(model):
    path = os.path.join(NOTES, model)
    if not os.path.exists(path):
        return ""
    with open(path) as file:
        return file.read()

def ints(name, *values):
    return pb_utils.Tensor(name, np.array(values, np.int32))

def add(a, b, *, model="add_MODE", names=("SUM", "DIFFERENCE"), **more):
    return pb_utils.InferenceRequest(
        model_name=model, requested_output_names=list(names), inputs=[ints("A", a), ints("B", b)], **more)

def one(model, value, **more):
    tensor = pb_utils.Tensor("IN", np.array([[value]] if model.startswith("queued") else [value], np.int32))
    return pb_utils.InferenceRequest(model_name=model, requested_output_names=["OUT"], inputs=[tensor], **more)

def outcome(response):
    if response.has_error():
        code = str(response.error().code()).split(".")[-1]
        return ["error", code, response.error().message(), len(response.output_tensors())]
    return {tensor.name(): [as_json(value) for value in tensor.as_numpy().ravel().tolist()]
            for tensor in response.output_tensors()}

def as_json(value):
    return json.loads(value) if isinstance(value, bytes) else value

def outcomes(responses):
    return [outcome(response) for response in responses]

def add_sub():
    return outcome(add(5, 3).exec())

def some_outputs():
    return outcome(add(5, 3, names=["SUM"]).exec())

def many():
    return [outcome(add(number, 1).exec())["SUM"][0] for number in range(300)]

def errors():
    missing = pb_utils.InferenceRequest(model_name="add_MODE", requested_output_names=["SUM"], inputs=[ints("A", 1)])
    return outcomes([
        add(666, 1).exec(),
        add(1, 1, model="nosuch").exec(),
        add(1, 1, model_version=9).exec(),
        add(1, 1, names=["NOSUCH"]).exec(),
        missing.exec(),
        one("count_MODE", 3).exec(),
    ])

def wrong_arguments():
    texts = []
    for arguments in (
        {"inputs": [], "requested_output_names": []},
        {"model_name": "m", "requested_output_names": []},
        {"model_name": "m", "inputs": []},
        {"model_name": "m", "inputs": [None], "requested_output_names": []},
    ):
        try:
            pb_utils.InferenceRequest(**arguments)
        except Exception as error:
            texts.append(type(error).__name__)
    return texts

def again():
    request = add(1, 2)
    responses = [request.exec(), request.exec(), add(1, 2, model_version=1).exec()]
    return [each["SUM"] for each in outcomes(responses)]

def every_argument():
    memory = pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_CPU, 0)
    request = add(1, 2, request_id="1", correlation_id=4, model_version=1, flags=0, timeout=60_000_000,
                  preferred_memory=memory, parameters={"key": "value", "number": 3, "flag": True})
    told = [request.request_id(), request.correlation_id(), request.flags(), request.timeout()]
    return [*told, json.loads(request.parameters()), outcome(request.exec())["SUM"]]

def large():
    values = np.arange(3_000_000, dtype=np.int32)
    request = pb_utils.InferenceRequest(
        model_name="add_MODE", requested_output_names=["SUM"],
        inputs=[pb_utils.Tensor("A", values), pb_utils.Tensor("B", values)])
    responses = [request.exec() for _ in range(3)]
    return [bool((each.output_tensors()[0].as_numpy() == values * 2).all()) for each in responses]

def empty():
    none = np.zeros((0,), np.int32)
    request = pb_utils.InferenceRequest(
        model_name="identity_empty", requested_output_names=["OUTPUT0"],
        inputs=[pb_utils.Tensor("INPUT0", none.reshape(1, 0))])
    return [outcome(request.exec()), request.exec().output_tensors()[0].shape()]

def decoupled():
    return [outcomes(one("count_MODE", value).exec(decoupled=True)) for value in (3, 0, 1)]

def decoupled_twice():
    responses = one("count_MODE", 3).exec(decoupled=True)
    return [outcomes(responses), outcomes(responses)]

def decoupled_error():
    return outcomes(one("count_MODE", 20).exec(decoupled=True))[-2:]

def decoupled_single():
    responses = add(5, 3).exec(decoupled=True)
    return outcomes(responses)

def decoupled_refused():
    return outcomes(one("nosuch", 3).exec(decoupled=True))

def cancelled():
    responses = one("count_MODE", 1_000_000).exec(decoupled=True)
    first = [outcome(next(responses)) for _ in range(3)]
    responses.cancel()
    return [*first, last_of(responses)]

def last_of(responses):
    *_, last = responses
    responses.cancel()
    return outcome(last)[:2] if last.has_error() else outcome(last)

def forgotten():
    responses = one("count_MODE", 1_000_000).exec(decoupled=True)
    return outcome(next(responses))

def ensemble():
    request = pb_utils.InferenceRequest(
        model_name="ensemble", requested_output_names=["OUTPUT0"],
        inputs=[pb_utils.Tensor("INPUT0", np.array([[7]], np.int32))])
    return outcome(request.exec())

def sequence():
    start, end = pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START, pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END
    got = []
    for id in (71, "name"):
        for value, flags in ((1, start), (2, 0), (3, end)):
            request = pb_utils.InferenceRequest(
                model_name="accumulate", requested_output_names=["OUTPUT"], correlation_id=id,
                inputs=[pb_utils.Tensor("INPUT", np.array([[value]], np.int32))])
            request.set_flags(flags)
            got.append(outcome(request.exec()).get("OUTPUT"))
    return got

def threads():
    got = [None] * 8
    def run(index):
        got[index] = [outcome(add(index, number).exec())["SUM"][0] for number in range(20)]
    started = [threading.Thread(target=run, args=(index,)) for index in range(8)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    return got

def ready():
    return [pb_utils.is_model_ready("add_MODE"), pb_utils.is_model_ready("add_MODE", "1"),
            pb_utils.is_model_ready("add_MODE", "7"), pb_utils.is_model_ready("nosuch")]

def itself():
    return outcome(call_of("caller_MODE", "add_sub").exec())

def ring():
    return outcome(call_of("other_MODE", "itself").exec())

def nested():
    return outcome(call_of("other_MODE", "add_sub").exec())

def call_of(model, what):
    return pb_utils.InferenceRequest(
        model_name=model, requested_output_names=["OUT"],
        inputs=[pb_utils.Tensor("WHAT", np.array([what], np.object_))])

async def gathered():
    responses = await asyncio.gather(*[add(number, 1).async_exec() for number in range(50)])
    return [outcome(each)["SUM"][0] for each in responses]

async def gathered_slow():
    for _ in range(20):
        before = noted("pool_MODE")
        await asyncio.gather(*[one("pool_MODE", 200).async_exec() for _ in range(4)])
        if "begun begun " in noted("pool_MODE").removeprefix(before):
            return "together"
    return "one after the other"

async def gathered_decoupled():
    iterators = await asyncio.gather(*[one("count_MODE", number).async_exec(decoupled=True) for number in range(4)])
    return [outcomes(each) for each in iterators]

def begins_at_once():
    before = noted("queued_MODE")
    responses = one("queued_MODE", 0).exec(decoupled=True)
    end = time.monotonic() + 20
    while noted("queued_MODE") == before and time.monotonic() < end:
        time.sleep(0.005)
    return [noted("queued_MODE") != before, outcomes(responses)]

async def cancelled_decoupled():
    responses = await one("count_MODE", 1_000_000).async_exec(decoupled=True)
    first = outcome(next(responses))
    responses.cancel()
    return [first, last_of(responses)]

async def refused():
    texts = []
    for call in (add_sub, decoupled, ready):
        try:
            call()
        except pb_utils.TritonModelException as error:
            texts.append(str(error))
    return texts

async def failing():
    return outcomes(await asyncio.gather(add(666, 1).async_exec(), add(1, 1, model="nosuch").async_exec()))

async def timeout():
    calls = [one("queued_MODE", 500), one("queued_MODE", 0, timeout=50_000), one("queued_MODE", 0)]
    return outcomes(await asyncio.gather(*[call.async_exec() for call in calls]))

async def waiting():
    return outcome(await one("slow_MODE", 60_000).async_exec())

async def waited_for():
    try:
        await asyncio.wait_for(one("slow_MODE", 3000).async_exec(), 0.1)
    except asyncio.TimeoutError:
        return "late"
"""

SYNC_EXECUTE = """
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            what = pb_utils.get_input_tensor_by_name(request, "WHAT").as_numpy()[0].decode()
            responses.append(self.response(globals()[what]()))
        return responses

    def response(self, got):
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([json.dumps(got)], np.object_))])
"""
ASYNC_EXECUTE = SYNC_EXECUTE.replace("def execute", "async def execute").replace("globals()", "await globals()")

INITIALIZING = """
class TritonPythonModel:
    def initialize(self, args):
        self.ready = pb_utils.is_model_ready("nosuch")

    def execute(self, requests):
        made = [pb_utils.Tensor("OUT", np.array([json.dumps(self.ready)], np.object_))]
        return [pb_utils.InferenceResponse(made) for _ in requests]
"""
