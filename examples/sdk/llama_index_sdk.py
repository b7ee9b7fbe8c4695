"""LlamaIndex's OpenAILike against a running platform: chat, stream, tools, a schema, errors.

BASE_URL=http://127.0.0.1:8000/v1 API_KEY=sk-... python examples/sdk/llama_index_sdk.py
"""

import os
from typing import Literal

import openai
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel

QUESTION = "How is the weather in Paris?"
options = {"api_base": os.environ["BASE_URL"], "api_key": os.environ["API_KEY"], "temperature": 0, "max_tokens": 60}
features = {"is_chat_model": True, "is_function_calling_model": True, "context_window": 1024}
model = OpenAILike(model="base", **options, **features)
messages = [ChatMessage(role="user", content=QUESTION)]


class City(BaseModel):
    """A schema that the answer obeys."""

    name: Literal["Paris", "Bern"]
    is_capital: bool


def get_weather(city: Literal["Paris", "Bern"]) -> str:
    """Weather of a city."""
    return f"sunny in {city}"


answer = model.chat(messages).message.content
assert answer
assert "".join(part.delta or "" for part in model.stream_chat(messages)) == answer
assert model.complete(QUESTION).text
print(repr(answer))

weather = FunctionTool.from_defaults(get_weather)
asked = model.chat_with_tools([weather], chat_history=messages, tool_required=True)
[call] = model.get_tool_calls_from_response(asked)[:1]
assert (call.tool_name, call.tool_kwargs["city"] in ("Paris", "Bern")) == ("get_weather", True), call
*_, last = model.stream_chat_with_tools([weather], chat_history=messages, tool_required=True)
assert model.get_tool_calls_from_response(last)[0].tool_kwargs == call.tool_kwargs
result = ChatMessage(
    role="tool", content=str(weather(**call.tool_kwargs)), additional_kwargs={"tool_call_id": call.tool_id}
)
final = model.chat([*messages, asked.message, result]).message.content
assert final
print(call.tool_kwargs, repr(final))

city = model.as_structured_llm(City).chat(messages).raw
assert isinstance(city, City), city
print(city)

for change, kind in (({"model": "gone"}, openai.NotFoundError), ({"api_key": "sk-wrong"}, openai.AuthenticationError)):
    try:
        OpenAILike(**{"model": "base", **options, **features, **change}).chat(messages)
    except kind as error:
        print(error.status_code, error.code)
    else:
        raise AssertionError(change)
