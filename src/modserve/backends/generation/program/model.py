"""The model.py of language models: reads requests, and hands them to the engine of the model's backend.

The worker's interpreter needs the engine's library, and nothing of modserve but the module of Triton's Python API.
"""

import importlib
import json
import os

import triton_python_backend_utils as pb_utils

from . import contract
from .figures import Figures, clock
from .loading import EngineFiles, LoadingError

_ENGINES = {"openvino_genai": ".on_genai.loading", "vllm": ".on_vllm.loading"}


class TritonPythonModel:
    @classmethod
    def auto_complete_config(cls, completed):
        """Complete a model without local files: add the parameters that only the engine's library knows."""
        config = completed.as_dict()
        describe = importlib.import_module(_ENGINES[config["backend"]], __package__).describe
        try:
            config["parameters"] = describe(config["path"], pb_utils)
        except LoadingError as error:
            raise pb_utils.TritonModelException(str(error), code=pb_utils.TritonError.INVALID_ARG) from None
        return completed

    def initialize(self, args):
        config = json.loads(args["model_config"])
        files = EngineFiles(
            os.path.join(args["model_repository"], args["model_version"]),
            config["default_model_filename"],
            {key: each["string_value"].strip() for key, each in config.get("parameters", {}).items()},
            args["model_instance_kind"],
            int(args["model_instance_device_id"]),
        )
        labels = {"model": args["model_name"], "version": args["model_version"]}
        figures = Figures(pb_utils, labels, args["model_instance_name"])
        self.replies = contract.Replies(pb_utils)
        load = importlib.import_module(_ENGINES[config["backend"]], __package__).load
        try:
            self.engine = load(files, figures, self.replies, pb_utils)
        except LoadingError as error:
            raise pb_utils.TritonModelException(str(error), code=pb_utils.TritonError.INVALID_ARG) from None
        self.modserve_room = self.engine.room

    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            try:
                self.engine.begin(contract.read(request, sender, clock()))
            except contract.RequestError as error:
                self.replies.fail(sender, "INVALID_ARG", str(error))

    def modserve_turn(self):
        return self.engine.turn()

    def finalize(self):
        self.engine.close()
