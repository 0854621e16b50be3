"""A model whose objects misbehave wherever the server reads them. The text of a request says how."""

CODE = """
import asyncio
import enum
import json
import sys

import numpy as np
import triton_python_backend_utils as pb_utils


class Boom(Exception):
    pass


def boom(*arguments, **more):
    raise Boom("line X")


def leave(*arguments, **more):
    sys.exit(3)


def derived(base, **members):
    return type(f"Odd{base.__name__}", (base,), members)


def array():
    return np.array([[1.0]], np.float32)


def failing(kind):
    return pb_utils.InferenceResponse(error=kind)


def with_tensor(tensor):
    return pb_utils.InferenceResponse([tensor])


def tensor(**members):
    return derived(pb_utils.Tensor, **members)("OUT", array())


def response(**members):
    return derived(pb_utils.InferenceResponse, **members)([pb_utils.Tensor("OUT", array())])


def error(**members):
    return derived(pb_utils.TritonError, **members)("odd")


class Name(str):
    __hash__ = boom
    __eq__ = boom


class Letter(enum.StrEnum):
    OUT = "OUT"


class OwnData(np.ndarray):
    data = property(boom)
    dtype = property(boom)
    flags = property(boom)
    shape = property(boom)


def later(made):
    made.output_tensors().append("no tensor")
    return made


RESPONSES = {
    "masked": lambda: with_tensor(pb_utils.Tensor("OUT", np.ma.array(array(), mask=[[False]]))),
    "own_data": lambda: with_tensor(pb_utils.Tensor("OUT", array().view(OwnData))),
    "matrix": lambda: with_tensor(pb_utils.Tensor("OUT", np.asmatrix(array()))),
    "name_is_odd": lambda: with_tensor(pb_utils.Tensor(Name("OUT"), array())),
    "name_is_enum": lambda: with_tensor(pb_utils.Tensor(Letter.OUT, array())),
    "message_raises": lambda: failing(error(message=boom)),
    "message_leaves": lambda: failing(error(message=leave)),
    "message_is_none": lambda: failing(error(message=lambda self: None)),
    "code_raises": lambda: failing(error(code=boom)),
    "code_is_unknown": lambda: failing(error(code=lambda self: 99)),
    "code_is_text": lambda: failing(error(code=lambda self: "E42")),
    "name_raises": lambda: with_tensor(tensor(name=boom)),
    "name_leaves": lambda: with_tensor(tensor(name=leave)),
    "name_is_none": lambda: with_tensor(tensor(name=lambda self: None)),
    "no_init_tensor": lambda: with_tensor(derived(pb_utils.Tensor, __init__=lambda self: None)()),
    "no_init_response": lambda: derived(pb_utils.InferenceResponse, __init__=lambda self: None)(),
    "outputs_raise": lambda: response(output_tensors=boom),
    "outputs_are_none": lambda: response(output_tensors=lambda self: None),
    "outputs_are_texts": lambda: response(output_tensors=lambda self: ["OUT"]),
    "outputs_change": lambda: later(with_tensor(pb_utils.Tensor("OUT", array()))),
    "error_raises": lambda: response(error=boom),
}


def cancel():
    asyncio.current_task().cancel()


def cancel_all():
    for task in asyncio.all_tasks():
        task.cancel()


RAISES = {
    "masked_elements": lambda: pb_utils.Tensor("OUT", np.ma.array(array(), mask=[[True]])),
    "masked_texts": lambda: pb_utils.Tensor("OUT", np.ma.array([b"a"], object, mask=[True])),
    "leaves": leave,
    "str_raises": lambda: throw(derived(Exception, __str__=boom)()),
    "str_leaves": lambda: throw(derived(Exception, __str__=leave)()),
    "str_is_none": lambda: throw(derived(Exception, __str__=lambda self: None)()),
    "own_code": lambda: throw(derived(pb_utils.TritonModelException, code="E42")("own code")),
    "code_property": lambda: throw(derived(pb_utils.TritonModelException, code=property(boom))("own code")),
    "base": lambda: throw(derived(BaseException)("line X")),
    "generator_exit": lambda: throw(GeneratorExit()),
    "asynchronous_end": lambda: throw(StopAsyncIteration()),
    "interrupt": lambda: throw(KeyboardInterrupt()),
    "cancelled": lambda: throw(asyncio.CancelledError()),
    "element": lambda: pb_utils.Tensor("OUT", np.array([derived(object, __str__=boom)()], object)),
    "parameter": lambda: pb_utils.InferenceResponse([], parameters=derived(dict, items=boom)(a=1)),
    "call": lambda: pb_utils.InferenceRequest(
        model_name="none", requested_output_names=["OUT"], inputs=[tensor(name=boom)]
    ).exec(),
}


def throw(exception):
    raise exception


def answer(text):
    return RESPONSES[text]() if text in RESPONSES else with_tensor(pb_utils.Tensor("OUT", array()))


class SyncModel:
    def initialize(self, args):
        self.decoupled = pb_utils.using_decoupled_model_transaction_policy(json.loads(args["model_config"]))

    def execute(self, requests):
        texts = [pb_utils.get_input_tensor_by_name(each, "IN").as_numpy().item().decode() for each in requests]
        for text in texts:
            if text in RAISES:
                RAISES[text]()
        if not self.decoupled:
            return [answer(text) for text in texts]
        for request, text in sorted(zip(requests, texts, strict=False), key=lambda one: one[1] in RESPONSES):
            request.get_response_sender().send(answer(text), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return None


class AsyncModel(SyncModel):
    async def execute(self, requests):
        texts = [pb_utils.get_input_tensor_by_name(each, "IN").as_numpy().item().decode() for each in requests]
        for text in texts:
            if text in ("cancels", "cancels_all"):
                (cancel if text == "cancels" else cancel_all)()
                await asyncio.sleep(0)
        return SyncModel.execute(self, requests)
"""
