"""Pydantic AI against a running platform, over chats and over responses: chat, stream, tools, a schema, errors.

BASE_URL=http://127.0.0.1:8000/v1 API_KEY=sk-... python examples/sdk/pydantic_ai_sdk.py
"""

import asyncio
import os
from typing import Literal

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

QUESTION = "How is the weather in Paris?"
settings = {"temperature": 0.0, "max_tokens": 60}


class City(BaseModel):
    """A schema that the answer obeys."""

    name: Literal["Paris", "Bern"]
    is_capital: bool


def provider(key: str = os.environ["API_KEY"]) -> OpenAIProvider:
    """Where the platform is."""
    return OpenAIProvider(base_url=os.environ["BASE_URL"], api_key=key)


async def main() -> None:
    """Ask in every way."""
    for kind in (OpenAIChatModel, OpenAIResponsesModel):
        model = kind("base", provider=provider())
        plain = Agent(model, model_settings=settings)
        answer = (await plain.run(QUESTION)).output
        assert answer
        async with plain.run_stream(QUESTION) as stream:
            assert [text async for text in stream.stream_text()][-1] == answer
        for output in (ToolOutput(City), NativeOutput(City)):
            city = (await Agent(model, output_type=output, model_settings=settings).run("Name a city")).output
            assert isinstance(city, City), city
            print(kind.__name__, type(output).__name__, city)
    for name, key, status in (("gone", os.environ["API_KEY"], 404), ("base", "sk-wrong", 401)):
        try:
            await Agent(OpenAIChatModel(name, provider=provider(key))).run(QUESTION)
        except ModelHTTPError as error:
            if error.status_code != status:
                raise
            print(error.status_code)
        else:
            raise AssertionError(name)


asyncio.run(main())
