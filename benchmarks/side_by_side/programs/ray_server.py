"""For Ray Serve: python ray_server.py PORT FOLDER"""

import signal
import sys

import ray
from onnx_models import NAMES, OnnxModel
from ray import serve


@serve.deployment(num_replicas=1, max_ongoing_requests=100, ray_actor_options={"num_cpus": 0})
class Deployment:
    def __init__(self, name):
        self._model = OnnxModel(name)

    async def __call__(self, request):
        return self._model.run_lists(await request.json())


if __name__ == "__main__":
    ray.init(include_dashboard=False, num_cpus=2, _temp_dir=sys.argv[2], log_to_driver=False)
    serve.start(
        http_options={"host": "127.0.0.1", "port": int(sys.argv[1])}, logging_config={"enable_access_log": False}
    )
    for name in NAMES:
        serve.run(Deployment.bind(name), name=name, route_prefix=f"/{name}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.pause()
