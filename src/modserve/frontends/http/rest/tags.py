"""The groups of calls in the OpenAPI document, and on the page of all calls."""

from collections.abc import Mapping

INFERENCE = "inference"
TEXT = "text"
HEALTH = "health"
METADATA = "metadata"
STATISTICS = "statistics"
REPOSITORY = "model repository"
ROUTING = "routing"
LOGGING = "logging"
TRACE = "trace"
SHARED_MEMORY = "shared memory"
V1 = "KServe v1, TensorFlow Serving"

TAGS: Mapping[str, str] = {
    INFERENCE: "Run a model.",
    TEXT: "Chat, and embed, rerank and classify texts.",
    HEALTH: "Ask whether the server or a model takes requests.",
    METADATA: "See what the server and its models are.",
    STATISTICS: "See what the models have done, and what memory they hold.",
    REPOSITORY: "Load and unload models.",
    ROUTING: "Divide requests between the versions of a model.",
    LOGGING: "Change what the server logs.",
    TRACE: "Change which requests are traced.",
    SHARED_MEMORY: "Let tensors of requests stay in memory that server and client share.",
    V1: "The same models in the words of older protocols.",
}
"""What each is for. Inference, which most readers come for, is first."""
