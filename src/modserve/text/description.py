"""Description of a text model from its directory: task, tensors of texts, and results from its outputs.

The files are ``config.json`` (transformers), ``modules.json``, ``<n>_Pooling/config.json``,
``sentence_bert_config.json`` and ``config_sentence_transformers.json`` (sentence-transformers), and
``tokenizer_config.json``. `TextSettings` of the model's configuration take precedence over all of them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from modserve.core.configuration.text_settings import TextSettings, TextTask
from modserve.core.errors import ModserveError, invalid

from .dense import DenseLayer, read_layer
from .files import broken, field, read_json, read_json_list
from .openai_errors import RequestFieldError

MODEL, MODULES, TOKENIZER = "config.json", "modules.json", "tokenizer.json"
_PROMPTS, _TOKENIZER_CONFIG = "config_sentence_transformers.json", "tokenizer_config.json"

_TASKS: Final = (
    ("ForTokenClassification", TextTask.TOKEN_CLASSIFICATION),
    ("ForSequenceClassification", TextTask.CLASSIFICATION),
)
"""Ending of an architecture → task. A classifier with one label is a reranker."""
_NO_TASK: Final = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")
"""Endings of architectures that generate text, unless sentence-transformers pools their output."""

_POOLING_FLAGS: Final = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len",
    "pooling_mode_weightedmean_tokens": "weighted_mean",
    "pooling_mode_lasttoken": "last_token",
}
"""Flag → our name, in the order in which sentence-transformers concatenates the vectors."""
_POOLING_NAMES: Final = {
    "weightedmean": "weighted_mean",
    "lasttoken": "last_token",
    "mean_sqrt_len_tokens": "mean_sqrt_len",
}
"""Our names for the values of the field ``pooling_mode`` in newer files."""

_PLAIN_MODULES: Final = ("Transformer", "Pooling", "Normalize")
"""Modules without weights other than the model's."""
_FROM_PADDING: Final = frozenset(
    {"roberta", "xlm-roberta", "camembert", "mpnet", "longformer", "xmod", "data2vec-text"}
)
"""Families that number positions after the padding token's."""
_MOST_LENGTH: Final = 1_000_000
"""Lengths above it mean "no limit" in transformers."""
_DEFAULT_LENGTH: Final = 512


@dataclass(frozen=True, slots=True)
class TextDescription:
    """Processing of a model's texts."""

    task: TextTask
    pooling: tuple[str, ...]
    """Pooling modes; empty if the model's output is the vector."""
    normalize: bool
    max_length: int
    """Maximum number of tokens of a text, including those added by the tokenizer."""
    truncate: bool
    max_texts: int
    lowercase: bool = False
    """True to convert texts to lower case before tokenizing."""
    prompts: Mapping[str, str] | None = None
    default_prompt: str = ""
    pools_prompt: bool = True
    """True if the tokens of a prompt count for the vector."""
    labels: tuple[str, ...] = ()
    activation: str = "none"
    output: str = ""
    """Output to read; empty for the choice of `outputs.chosen`."""
    layers: tuple[DenseLayer, ...] = ()
    """Layers after the pooling, unless the model contains them."""
    unread_layer: str = ""
    """Reason why a layer after the pooling cannot be read: only a model that contains it gives correct vectors."""
    architecture: str = ""

    def prompt(self, name: str | None) -> str:
        """Return the prompt for a text. Raises INVALID_ARG for an unknown name."""
        prompts = self.prompts or {}
        name = self.default_prompt if name is None else name
        if not name:
            return ""
        if name not in prompts:
            known = ", ".join(f"'{each}'" for each in prompts) or "none"
            raise RequestFieldError(f"the model has no prompt '{name[:100]}'; its prompts are: {known}", "prompt_name")
        return prompts[name]


def is_text_model(folder: Path) -> bool:
    """True if there is a tokenizer: without one, the model takes tensors only."""
    return (folder / TOKENIZER).is_file()


def describe(folder: Path, settings: TextSettings) -> TextDescription | None:
    """Return the description of the model in `folder`; None for a text generation model.

    Raises INTERNAL for existing files that are unusable.
    """
    config = read_json(folder, MODEL) or {}
    modules = read_json_list(folder, MODULES)
    task = settings.task or _task(config, modules, folder)
    if task is None:
        return None
    kinds = _kinds(modules)
    pooling_config = _pooling_config(folder, modules)
    sentence = _sentence_config(folder)
    prompts, default_prompt = _prompts(folder)
    if settings.default_prompt is not None:
        default_prompt = settings.default_prompt
    prompts = {**prompts, **settings.prompts}
    if default_prompt and default_prompt not in prompts:
        default_prompt = ""
    labels = _labels(config, folder)
    layers, unread = _layers(folder, modules)
    flag = pooling_config.get("include_prompt")
    return TextDescription(
        task=task,
        pooling=settings.pooling if settings.pooling is not None else _pooling(pooling_config),
        normalize=settings.normalize if settings.normalize is not None else (modules is None or "Normalize" in kinds),
        max_length=settings.max_length or _max_length(folder, config, sentence),
        truncate=settings.truncate,
        max_texts=settings.max_texts,
        lowercase=sentence.get("do_lower_case") is True,
        prompts=prompts,
        default_prompt=default_prompt,
        pools_prompt=flag is not False,
        labels=labels,
        activation=settings.activation or _activation(task, config, labels),
        output=settings.output,
        layers=layers,
        unread_layer=unread,
        architecture=_architecture(config),
    )


def _task(config: Mapping[str, Any], modules: list[dict[str, Any]] | None, folder: Path) -> TextTask | None:
    architecture = _architecture(config)
    if modules is not None:
        return TextTask.EMBEDDING
    for ending, task in _TASKS:
        if architecture.endswith(ending):
            one = task is TextTask.CLASSIFICATION and len(_labels(config, folder)) == 1
            return TextTask.RERANK if one else task
    return None if architecture.endswith(_NO_TASK) else TextTask.EMBEDDING


def _architecture(config: Mapping[str, Any]) -> str:
    names = config.get("architectures")
    return str(names[0]) if isinstance(names, list) and names else ""


def _labels(config: Mapping[str, Any], folder: Path) -> tuple[str, ...]:
    """Return the labels by number; like transformers, two unnamed ones by default."""
    path = folder / MODEL
    names = field(dict(config), "id2label", dict, path)
    count = field(dict(config), "num_labels", int, path)
    if names is not None:
        try:
            by_number = {int(number): str(label) for number, label in names.items()}
        except ValueError as error:
            raise broken(path, "'id2label' has a key that is no number") from error
        count = max(by_number, default=-1) + 1
        if count > _MOST_LENGTH or min(by_number, default=0) < 0:
            raise broken(path, f"'id2label' has the number {max(by_number, key=abs)}")
        return tuple(by_number.get(number, f"LABEL_{number}") for number in range(count))
    return tuple(f"LABEL_{number}" for number in range(min(2 if count is None else max(count, 0), _MOST_LENGTH)))


def _kinds(modules: list[dict[str, Any]] | None) -> list[str]:
    """Return the class names of the modules, without packages."""
    return [str(module.get("type", "")).rpartition(".")[2] for module in modules or ()]


def _pooling_config(folder: Path, modules: list[dict[str, Any]] | None) -> dict[str, Any]:
    """Return the pooling configuration; empty if there is none."""
    paths = [str(module.get("path", "")) for module in modules or () if str(module.get("type", "")).endswith("Pooling")]
    for path in paths or ["1_Pooling"]:
        content = read_json(_inside(folder, path), MODEL)
        if content is not None:
            return content
    return {}


def _inside(folder: Path, path: str) -> Path:
    """Return the folder of a module. Raises INTERNAL."""
    if path.startswith("/") or ".." in path.split("/"):
        raise broken(folder / MODULES, f"its path '{path}' is outside the model's folder")
    return folder / path


def _layers(folder: Path, modules: list[dict[str, Any]] | None) -> tuple[tuple[DenseLayer, ...], str]:
    """Return the layers between pooling and normalisation, or the reason why one of them cannot be read."""
    kinds = _kinds(modules)
    rest = [kind for kind in kinds if kind not in _PLAIN_MODULES]
    if not rest:
        return (), ""
    first = kinds.index("Pooling") + 1 if "Pooling" in kinds else 0
    own = kinds[first : first + len(rest)]
    if not first or own != ["Dense"] * len(rest):
        return (), f"modules.json has {', '.join(kinds)}; read are layers of the kind Dense right behind Pooling"
    layers = []
    for module in (modules or ())[first : first + len(rest)]:
        layer = read_layer(_inside(folder, str(module.get("path", ""))))
        if isinstance(layer, str):
            return (), layer
        layers.append(layer)
    return tuple(layers), ""


def _pooling(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the pooling modes; the mean by default, as in sentence-transformers."""
    mode = config.get("pooling_mode")
    if mode:
        modes = mode if isinstance(mode, list) else [mode]
        return tuple(_POOLING_NAMES.get(str(each), str(each)) for each in modes)
    return tuple(name for flag, name in _POOLING_FLAGS.items() if config.get(flag) is True) or ("mean",)


def _sentence_config(folder: Path) -> dict[str, Any]:
    for path in sorted(folder.glob("sentence_*_config.json")):
        return read_json(folder, path.name) or {}
    return {}


def _prompts(folder: Path) -> tuple[dict[str, str], str]:
    """Return the prompts by name, and the name of the default."""
    content = read_json(folder, _PROMPTS) or {}
    path = folder / _PROMPTS
    prompts = field(content, "prompts", dict, path) or {}
    default = field(content, "default_prompt_name", str, path) or ""
    return {str(name): str(text) for name, text in prompts.items()}, default


def _max_length(folder: Path, config: Mapping[str, Any], sentence: dict[str, Any]) -> int:
    """Return the first specified length, at most the model's number of positions."""
    positions = _positions(config)
    for length in _lengths(folder, sentence):
        if length is not None and 0 < length <= _MOST_LENGTH:
            return min(length, positions or length)
    return positions or _DEFAULT_LENGTH


def _lengths(folder: Path, sentence: dict[str, Any]) -> Iterator[int | None]:
    yield field(sentence, "max_seq_length", int, folder / "sentence_bert_config.json")
    tokenizer = read_json(folder, _TOKENIZER_CONFIG) or {}
    length = tokenizer.get("model_max_length")
    yield int(length) if isinstance(length, int | float) and 0 < length <= _MOST_LENGTH else None


def _positions(config: Mapping[str, Any]) -> int:
    """Return the maximum text length by the model's positions; 0 if unknown."""
    most = config.get("max_position_embeddings")
    if not isinstance(most, int) or not 0 < most <= _MOST_LENGTH:
        return 0
    pad = config.get("pad_token_id")
    if config.get("model_type") in _FROM_PADDING:
        return max(1, most - (pad if isinstance(pad, int) else 1) - 1)
    return most


def _activation(task: TextTask, config: Mapping[str, Any], labels: tuple[str, ...]) -> str:
    several = config.get("problem_type") == "multi_label_classification"
    by_task = {
        TextTask.EMBEDDING: "none",
        TextTask.RERANK: "sigmoid",
        TextTask.CLASSIFICATION: "sigmoid" if several or len(labels) == 1 else "softmax",
        TextTask.TOKEN_CLASSIFICATION: "softmax",
    }
    return by_task[task]


def no_text_model(name: str, why: str) -> ModserveError:
    """Return INVALID_ARG for a model that takes tensors only."""
    return invalid(f"model '{name}' takes no texts: {why}")
