"""Outputs in the memory of a GPU, for clients that share memory of it or do not: with a driver that only pretends."""

import asyncio
import json
import threading
from pathlib import Path

import numpy as np
import pytest
from puppet_server import Stage, infer, numbers, stage
from test_grpc_service import Stub

from fake_cuda import HANDLE, FakeDriver
from modserve.core.errors import ModserveError
from modserve.core.requests.response import InferenceResponse
from modserve.core.tensors import dlpack
from modserve.core.tensors.shared_memory import CudaRegion, RegionSlice
from modserve.pb import inference as pb
from modserve.resources.cuda import Cuda
from modserve.resources.shared_memory import SharedMemory
from modserve.testing import FakeDevice

PLACE = {"shared_memory_region": "g", "shared_memory_offset": 16, "shared_memory_byte_size": 8}


def register(stage: Stage) -> FakeDriver:
    """A region of 32 bytes, `g`, on GPU 0."""
    driver = FakeDriver()
    stage.server.shared_memory = SharedMemory(True, cuda=Cuda(lambda: driver))  # type: ignore[arg-type, return-value]
    stage.server.shared_memory.register_cuda(CudaRegion("g", 0, 32), HANDLE)
    return driver


async def settle(stage: Stage, gpu: FakeDevice) -> None:
    """What `simple` has been asked for is there: OUTPUT0 on the GPU, if it may be, and OUTPUT1 on the host."""
    for _ in range(100):
        if not stage.simple.submitted:
            await asyncio.sleep(0)
    (inflight,) = stage.simple.submitted
    assert set(inflight.device_outputs) == {"OUTPUT0"}
    outputs = {"OUTPUT0": gpu.tensor(np.array([[7, 8]], np.int32)), "OUTPUT1": gpu.tensor(np.array([[1, 2]], np.int32))}
    inflight.settle(InferenceResponse("simple", 1, outputs, inflight.request.id))


@pytest.mark.parametrize(("number", "downloads"), [(0, 0), (1, 1)], ids=["the same GPU", "another"])
async def test_an_output_goes_into_a_region_of_its_gpu(tmp_path: Path, number: int, downloads: int) -> None:
    """Over both wires; the other output is read on the host."""
    async with stage(tmp_path) as staged:
        driver, gpu = register(staged), FakeDevice(dlpack.CUDA, number)
        client = staged.connect()
        inputs = [{"name": f"INPUT{index}", "shape": [1, 2], "datatype": "INT32", "data": [1, 2]} for index in range(2)]
        outputs = [{"name": "OUTPUT0", "parameters": PLACE}, {"name": "OUTPUT1"}]
        client.send(infer(json.dumps({"inputs": inputs, "outputs": outputs}).encode()))
        await settle(staged, gpu)
        (answer,) = await client.receive()
        assert json.loads(answer.body)["outputs"][1]["data"] == [1, 2]
        assert bytes(driver.memory[16:24]) == numbers(7, 8).tobytes()
        assert gpu.downloads == downloads + 1

        staged.simple.submitted.clear()
        driver.memory[16:24] = bytes(8)
        message = pb.ModelInferRequest(model_name="simple")
        for index in range(2):
            message.inputs.add(name=f"INPUT{index}", datatype="INT32", shape=[1, 2])
            message.raw_input_contents.append(numbers(1, 2).tobytes())
        parameters = message.outputs.add(name="OUTPUT0").parameters
        parameters["shared_memory_region"].string_param = "g"
        parameters["shared_memory_offset"].int64_param = 16
        parameters["shared_memory_byte_size"].int64_param = 8
        message.outputs.add(name="OUTPUT1")
        call = asyncio.ensure_future(Stub(staged.server)("ModelInfer", message))
        await settle(staged, gpu)
        response = await call
        assert isinstance(response, pb.ModelInferResponse)
        assert list(response.raw_output_contents) == [b"", numbers(1, 2).tobytes()]
        assert bytes(driver.memory[16:24]) == numbers(7, 8).tobytes()
        assert gpu.downloads == 2 * (downloads + 1)


async def test_a_region_is_closed_beside_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver may wait for the GPU there, and meanwhile nobody waits for the driver."""
    closing, go_on = threading.Event(), threading.Event()
    close = FakeDriver._cuIpcCloseMemHandle

    def slow(driver: FakeDriver, address: object) -> None:
        closing.set()
        assert go_on.wait(30)
        close(driver, address)

    monkeypatch.setattr(FakeDriver, "_cuIpcCloseMemHandle", slow)
    async with stage(tmp_path) as staged:
        driver = register(staged)
        unregistering = asyncio.ensure_future(staged.server.unregister_region(CudaRegion, "g"))
        try:
            assert await asyncio.to_thread(closing.wait, 30)
            # On a thread, so that a failure is no hang.
            lease = staged.server.shared_memory.lease()
            with pytest.raises(ModserveError, match="Unable to find shared memory region: 'g'"):
                await asyncio.wait_for(asyncio.to_thread(lease.read, RegionSlice("g", 0, 8)), 10)
        finally:
            go_on.set()
        await unregistering
        assert driver.opened == 0
