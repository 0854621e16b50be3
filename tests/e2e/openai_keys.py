"""OpenAI's client with keys, run by its own interpreter: what it gets, as JSON."""

import json
import sys

import openai

URL, KEY = sys.argv[1:]


def models(key: str) -> object:
    try:
        return [model.id for model in openai.OpenAI(base_url=URL, api_key=key, max_retries=0).models.list()]
    except openai.APIStatusError as error:
        return [type(error).__name__, error.status_code, error.body]


print(json.dumps([models(KEY), models("msk_wrong")]))
