"""Instructor over OpenAI's and Anthropic's SDKs on a running platform: schemas by tools and by JSON, streams, errors.

BASE_URL=http://127.0.0.1:8000/v1 API_KEY=sk-... python examples/sdk/instructor_sdk.py
"""

import os
from typing import Literal

import anthropic
import instructor
import openai
from instructor import Mode
from pydantic import BaseModel

base_url, key = os.environ["BASE_URL"], os.environ["API_KEY"]
question = {"model": "base", "messages": [{"role": "user", "content": "Name a city"}], "max_tokens": 60}


class City(BaseModel):
    """A schema that the answer obeys."""

    name: Literal["Paris", "Bern"]
    is_capital: bool


def client_of(mode: Mode, api_key: str = key) -> instructor.Instructor:
    """A client that asks in one of the ways there are."""
    return instructor.from_openai(openai.OpenAI(base_url=base_url, api_key=api_key), mode=mode)


for mode in (Mode.TOOLS, Mode.TOOLS_STRICT, Mode.JSON_SCHEMA):
    city, whole = client_of(mode).chat.completions.create_with_completion(
        **question, response_model=City, temperature=0, max_retries=1
    )
    assert isinstance(city, City), city
    assert whole.usage.completion_tokens > 0
    print(mode, city)

*_, last = client_of(Mode.TOOLS).chat.completions.create_partial(**question, response_model=City, temperature=0)
assert last.name in ("Paris", "Bern"), last
print("partial", last)

messages = instructor.from_anthropic(anthropic.Anthropic(base_url=base_url.removesuffix("/v1"), api_key=key))
city = messages.messages.create(**question, response_model=City, max_retries=1)
assert isinstance(city, City), city
print("anthropic", city)

try:
    client_of(Mode.TOOLS, "sk-wrong").chat.completions.create(**question, response_model=City, max_retries=0)
except Exception as error:  # which class it is has changed with instructor's versions
    if "API key" not in str(error):
        raise
    print(type(error).__name__)
else:
    raise AssertionError("a wrong key was taken")
