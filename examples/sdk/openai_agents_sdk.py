"""OpenAI's Agents SDK against a running platform, over responses and over chats: a tool, a schema, a stream, errors.

BASE_URL=http://127.0.0.1:8000/v1 API_KEY=sk-... python examples/sdk/openai_agents_sdk.py
"""

import asyncio
import os
from typing import Literal

import openai
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai.types.responses import ResponseTextDeltaEvent
from pydantic import BaseModel

set_tracing_disabled(True)
QUESTION = "How is the weather in Paris?"
called = []


class City(BaseModel):
    """A schema that the answer obeys."""

    name: Literal["Paris", "Bern"]
    is_capital: bool


@function_tool
def get_weather(city: Literal["Paris", "Bern"]) -> str:
    """Weather of a city."""
    called.append(city)
    return f"sunny in {city}"


def client(key: str = os.environ["API_KEY"]) -> openai.AsyncOpenAI:
    """A client of the platform."""
    return openai.AsyncOpenAI(base_url=os.environ["BASE_URL"], api_key=key)


async def main() -> None:
    """Ask in every way."""
    for kind in (OpenAIResponsesModel, OpenAIChatCompletionsModel):
        model = kind(model="base", openai_client=client())
        settings = ModelSettings(temperature=0, max_tokens=60)
        plain = Agent("plain", model=model, model_settings=settings, instructions="Be brief.")
        answer = (await Runner.run(plain, QUESTION)).final_output
        assert answer
        run, deltas = Runner.run_streamed(plain, QUESTION), []
        async for event in run.stream_events():
            if event.type == "raw_response_event" and isinstance(event.data, ResponseTextDeltaEvent):
                deltas.append(event.data.delta)
        assert "".join(deltas) == run.final_output == answer
        forced = ModelSettings(temperature=0, max_tokens=60, tool_choice="required", parallel_tool_calls=False)
        calling = Agent("calling", model=model, model_settings=forced, tools=[get_weather])
        called.clear()
        final = (await Runner.run(calling, QUESTION)).final_output
        assert called, "the tool was called, after which the choice is the model's own"
        assert isinstance(final, str)
        shaped = Agent("shaped", model=model, model_settings=settings, output_type=City)
        city = (await Runner.run(shaped, "Name a city")).final_output
        assert isinstance(city, City), city
        print(kind.__name__, repr(answer), called, city)
    try:
        await Runner.run(Agent("x", model=OpenAIResponsesModel(model="base", openai_client=client("sk-wrong"))), "hi")
    except openai.AuthenticationError as error:
        print(error.status_code)
    else:
        raise AssertionError("a wrong key was taken")


asyncio.run(main())
