"""Which model a call of texts is for: the one that it names, with its owner or without, or the only one."""

from typing import Any

import pytest
from test_keys_of_text_routes import Place, body_of, place  # noqa: F401  # fixtures that are imported

from modserve.access.permissions import need_of

GENERATION = ("/v1/chat/completions", "/v1/completions", "/openai/v1/responses")
CALLS = (*GENERATION, "/v1/embeddings", "/v1/rerank", "/rerank", "/predict", "/tokenize")


def named(document: Any) -> str:
    return str(document["model"])


@pytest.mark.parametrize("path", CALLS)
async def test_a_model_by_its_name_on_the_hub(place: Place, path: str) -> None:  # noqa: F811
    """Its owner says where it comes from, and changes no permission."""
    name = body_of(path)["model"]
    response = await place.post(path, "user", model=f"org/{name}")
    assert response.status_code == 200, response.text
    if "/v1/" in path:
        assert named(response.json()) == f"org/{name}"
    for model in (f"org/{name}x", f"{name}/org", f"{name}/", f"{name}/ ", "/"):
        assert (await place.post(path, "user", model=model)).status_code == 404, model
    if path != "/predict":
        assert (await place.post(path, "other", model=f"classes/{name}")).status_code == 404
    assert (await place.post(path, "reader", model=f"org/{name}")).status_code == 403


@pytest.mark.parametrize("prefix", ["/v1", "/openai/v1"])
async def test_in_paths(place: Place, prefix: str) -> None:  # noqa: F811
    for sent in ("speaker", "org/speaker", "org%2Fspeaker", "a.b-c/speaker", "org%2fspeak%65r"):
        response = await place.client.get(f"{prefix}/models/{sent}", headers={"x-api-key": "user"})
        assert (response.status_code, response.json()["id"]) == (200, "speaker"), sent
    for sent in ("org/nosuch", "org%2Fnosuch", "speaker%2Forg", "a%2Fb/nosuch"):
        response = await place.client.get(f"{prefix}/models/{sent}", headers={"x-api-key": "user"})
        assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found"), sent
    hidden = await place.client.get(f"{prefix}/models/classes/speaker", headers={"x-api-key": "other"})
    absent = await place.client.get(f"{prefix}/models/classes/nosuch", headers={"x-api-key": "other"})
    assert (hidden.status_code, hidden.text) == (404, absent.text.replace("nosuch", "speaker"))


@pytest.mark.parametrize(
    ("path", "model"),
    [
        ("/v1/models/m", "m"),
        ("/v1/models/org/m", "m"),
        ("/v1/models/org\udc2fm", "m"),
        ("/v1/models/a\udc2fb/c\udc2fm", "m"),
        ("/openai/v1/models/org/m", "m"),
        ("/v1/models/org/versions/3", "org"),
        ("/v1/models/org/metadata", "org"),
        ("/v1/models/org/m/metadata", ""),
        ("/v1/models/org/m\udc2f", ""),
        ("/v1/models/\udc2f", ""),
        ("/v2/models/org\udc2fm", "org\udc2fm"),
    ],
)
def test_the_model_of_a_path(path: str, model: str) -> None:
    assert need_of("GET", path)[1] == model


@pytest.mark.parametrize("path", GENERATION)
async def test_the_only_model_need_not_be_named(place: Place, path: str) -> None:  # noqa: F811
    """The only one that the caller sees: another caller's models are not there."""
    body = {name: value for name, value in body_of(path).items() if name != "model"}
    headers = {"x-api-key": "talker"}
    for model in ({}, {"model": None}):
        response = await place.client.post(path, json=body | model, headers=headers)
        assert (response.status_code, named(response.json())) == (200, "speaker"), response.text
    streamed = await place.client.post(path, json=body | {"stream": True}, headers=headers)
    assert '"model":"speaker"' in streamed.text
    assert place.tenants == ["talkers"] * 3
    none = await place.client.post(path, json=body, headers={"x-api-key": "other"})
    error = none.json()["error"]
    assert (none.status_code, error["code"], error["param"]) == (404, "model_not_found", "model")
    assert error["message"] == "there is no model that generates text"
    empty = await place.client.post(path, json=body | {"model": ""}, headers=headers)
    assert (empty.status_code, empty.json()["error"]["message"]) == (400, "'model' is empty")
