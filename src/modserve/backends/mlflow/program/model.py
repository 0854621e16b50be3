"""The model.py of every MLflow model: runs its pyfunc in a worker of the Python backend.

The worker's interpreter may be an older one than the server's, with packages of its own: MLflow and pandas are there,
and nothing of modserve but the module of Triton's Python API.
"""

import json
import os
import re

import numpy as np
import triton_python_backend_utils as pb_utils

DESCRIPTION = "MLmodel"
MOMENT = re.compile(
    r"(?P<local>\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d{1,9})?)?)?)"
    r"(?:Z|(?P<sign>[+-])(?P<hours>\d\d):?(?P<minutes>\d\d))?|NaT",
    re.ASCII,
)


def directory_of(version_directory):
    """Return the directory of MLflow's files: the version directory or the one directory in it that has them."""
    below = sorted(entry.path for entry in os.scandir(version_directory) if entry.is_dir())
    for place in [version_directory, *below]:
        if os.path.isfile(os.path.join(place, DESCRIPTION)):
            return place
    raise pb_utils.TritonModelException(f"there is no {DESCRIPTION} in {version_directory}")


class TritonPythonModel:
    def initialize(self, args):
        import mlflow.pyfunc

        place = os.path.join(args["model_repository"], args["model_version"])
        self.model = mlflow.pyfunc.load_model(directory_of(place))
        config = json.loads(args["model_config"])
        self.batches = int(config.get("max_batch_size", 0)) > 0
        self.outputs = [
            (each["name"], each["data_type"], [int(size) for size in each["dims"]]) for each in config["output"]
        ]
        self.inputs = [each["name"] for each in config["input"]]
        self.schema = self.model.metadata.get_input_schema()
        self.kinds = kinds(self.schema, self.inputs)
        schema = self.model.metadata.get_params_schema() if hasattr(self.model.metadata, "get_params_schema") else None
        self.params = [spec.name for spec in schema.params] if schema is not None else []

    def execute(self, requests):
        responses = []
        for together in self.groups(requests):
            responses += self.respond(together)
        return responses

    def groups(self, requests):
        """Group adjacent requests that can be one call: with the same parameters and the same inputs."""
        groups = []
        for request in requests:
            key = self.parameters(request), self.names(request)
            if self.batches and groups and groups[-1][0] == key:
                groups[-1][1].append(request)
            else:
                groups.append((key, [request]))
        return [group for _, group in groups]

    def names(self, request):
        """Return the inputs that a request has, in the order of the configuration and of the model's columns."""
        present = {tensor.name() for tensor in request.inputs()}
        return [name for name in self.inputs if name in present]

    def parameters(self, request):
        if not self.params:
            return {}
        values = json.loads(request.parameters() or "{}")
        return {name: values[name] for name in self.params if name in values}

    def respond(self, requests):
        """Respond to requests that are one call. If it fails, each becomes a call of its own: only bad ones fail."""
        try:
            return self.responses(requests)
        except Exception as error:
            if len(requests) > 1:
                return [response for request in requests for response in self.respond([request])]
            if isinstance(error, InputError):
                failure = pb_utils.TritonError(str(error), pb_utils.TritonError.INVALID_ARG)
            else:
                failure = pb_utils.TritonError(f"the MLflow model failed: {type(error).__name__}: {error}")
            return [pb_utils.InferenceResponse(error=failure)]

    def responses(self, requests):
        arrays = {}
        for name in self.names(requests[0]):
            parts = [pb_utils.get_input_tensor_by_name(request, name).as_numpy() for request in requests]
            arrays[name] = np.concatenate(parts) if len(parts) > 1 else parts[0]
        sizes = [len(request.inputs()[0].as_numpy()) if self.batches else 0 for request in requests]
        results = self.results(self.predict(arrays, self.parameters(requests[0])), sum(sizes))
        begin, responses = 0, []
        for request, size in zip(requests, sizes):
            names = set(request.requested_output_names())
            parts = [
                pb_utils.Tensor(name, values[begin : begin + size] if self.batches else values)
                for name, values in results.items()
                if name in names
            ]
            responses.append(pb_utils.InferenceResponse(parts))
            begin += size
        return responses

    def predict(self, arrays, parameters):
        data = self.data({name: convert(name, array, self.kinds.get(name)) for name, array in arrays.items()})
        return self.model.predict(data, params=parameters) if parameters else self.model.predict(data)

    def data(self, arrays):
        """Return the input of a pyfunc: a frame for columns, an array for an unnamed tensor, or a dict of tensors."""
        schema = self.schema
        if schema is None:
            return next(iter(arrays.values())) if len(self.inputs) == 1 else frame(arrays)
        if schema.is_tensor_spec():
            return arrays if schema.has_input_names() else next(iter(arrays.values()))
        if schema.has_input_names():
            return frame(arrays)
        return frame({self.inputs.index(name): array for name, array in arrays.items()})

    def results(self, prediction, rows):
        """Return the outputs of the configuration, by their names or in their order."""
        columns = by_name(prediction)
        if columns is None:
            columns = {self.outputs[0][0]: prediction}
        elif not {name for name, _, _ in self.outputs} <= set(columns) and len(columns) == len(self.outputs):
            columns = {name: column for (name, _, _), column in zip(self.outputs, columns.values())}
        missing = [name for name, _, _ in self.outputs if name not in columns]
        if missing:
            raise KeyError(f"the model returned {sorted(map(str, columns))}, but not {missing}")
        return {name: self.shape_output(name, columns[name], kind, dims, rows) for name, kind, dims in self.outputs}

    def shape_output(self, name, values, kind, dims, rows):
        if hasattr(values, "toarray"):
            values = values.toarray()
        if isinstance(values, np.ndarray) and np.ma.is_masked(values):
            raise ValueError(f"'{name}' has masked elements, which have no value to send")
        array = np.asarray(values)
        if kind == "TYPE_STRING":
            array = encode(array)
        else:
            array = array.astype(pb_utils.triton_string_to_numpy(kind), copy=False)
        fixed = all(size > 0 for size in dims)
        lone = rows == 1 and fixed and array.ndim <= len(dims) and array.size == np.prod(dims)
        if self.batches and not lone and (array.ndim == 0 or len(array) != rows):
            number = len(array) if array.ndim else 1
            raise ValueError(
                f"output '{name}' has {number} rows for {rows} rows of the inputs; a model that does not return "
                "one row per input row needs 'max_batch_size: 0'"
            )
        if array.ndim < len(dims) + self.batches and fixed:
            array = array.reshape(([rows] if self.batches else []) + dims)
        return array


class InputError(ValueError):
    """A fault in the inputs of a request."""


def kinds(schema, names):
    """Return for each input the name of its column's type, or the letter of its tensor's, as numpy has them."""
    if schema is None:
        return {}
    labels = schema.input_names() if schema.has_input_names() else names
    return {
        name: getattr(spec.type, "kind", "") if schema.is_tensor_spec() else getattr(spec.type, "name", "")
        for name, spec in zip(labels, schema.inputs)
    }


def convert(name, array, kind):
    """Convert a tensor of bytes to the type that MLflow needs: it converts neither texts nor dates itself."""
    if array.dtype != object or kind == "binary":
        return array
    if kind == "S":
        return array.astype(bytes)
    array = texts(name, array)
    if kind == "U":
        return array.astype(str)
    return dates(name, array) if kind == "datetime" else array


def objects(values, shape):
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array.reshape(shape)


def texts(name, array):
    """Decode an array of bytes to texts; others stay as they are."""
    if array.dtype != object:
        return array
    try:
        flat = [each.decode("utf-8") if isinstance(each, bytes) else each for each in array.ravel().tolist()]
    except UnicodeDecodeError as error:
        raise InputError(f"input '{name}' holds bytes that are not UTF-8: {error}") from None
    return objects(flat, array.shape)


def dates(name, array):
    """Parse dates and times of ISO 8601. Those with a time zone become UTC, as MLflow's dates have none."""
    moments = [moment(name, text) for text in array.ravel().tolist()]
    return np.array(moments, "datetime64[ns]").reshape(array.shape)


def moment(name, text):
    match = MOMENT.fullmatch(text)
    try:
        if match is None:
            raise ValueError(f"'{text}' is none")
        exact = np.datetime64(match["local"] or "NaT")
        value = exact.astype("datetime64[ns]")
        if value.astype(exact.dtype) != exact and not np.isnat(exact):
            raise ValueError(f"'{text}' is too long ago or too far ahead")
    except ValueError as error:
        expected = "expected dates as ISO 8601 has them, such as 2024-02-29 or 2024-02-29T01:02:03.5Z"
        raise InputError(f"input '{name}' is of dates: {error}; {expected}") from None
    if match["sign"]:
        minutes = 60 * int(match["hours"]) + int(match["minutes"])
        value -= np.timedelta64(minutes if match["sign"] == "+" else -minutes, "m")
    return value


def encode(array):
    """Encode the elements as bytes: dates and times as in ISO 8601."""
    if array.dtype.kind == "M":
        array = np.datetime_as_string(array)
    return objects([element(each) for each in array.ravel().tolist()], array.shape)


def element(value):
    if isinstance(value, bytes):
        return value
    if isinstance(value, np.datetime64):
        return str(value).encode()
    return (value.isoformat() if hasattr(value, "isoformat") else str(value)).encode()


def frame(arrays):
    for name, array in arrays.items():
        if array.size != len(array):
            raise InputError(
                f"input '{name}' has the shape {list(array.shape)}, but a column of a frame has one element a row: a "
                "model with several inputs, of which one has more, needs a signature that describes them as tensors"
            )
    import pandas

    return pandas.DataFrame({name: array.reshape(len(array)) for name, array in arrays.items()})


def by_name(prediction):
    """Return the columns of a frame or of a dict; None if there are no names."""
    if isinstance(prediction, dict):
        return prediction
    if hasattr(prediction, "columns") and hasattr(prediction, "items"):
        return {str(name): column.to_numpy() for name, column in prediction.items()}
    return None
