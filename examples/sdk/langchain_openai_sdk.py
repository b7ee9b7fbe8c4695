"""LangChain's ChatOpenAI against a running platform: chat, stream, tools, a schema, errors.

BASE_URL=http://127.0.0.1:8000/v1 API_KEY=sk-... python examples/sdk/langchain_openai_sdk.py
"""

import os
from typing import Literal

import openai
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

QUESTION = "How is the weather in Paris?"
options = {"base_url": os.environ["BASE_URL"], "api_key": os.environ["API_KEY"], "temperature": 0, "max_tokens": 60}
model = ChatOpenAI(model="base", **options)


class City(BaseModel):
    """A schema that the answer obeys."""

    name: Literal["Paris", "Bern"]
    is_capital: bool


@tool
def get_weather(city: Literal["Paris", "Bern"]) -> str:
    """Weather of a city."""
    return f"sunny in {city}"


answer = model.invoke(QUESTION)
assert answer.content, answer
assert answer.usage_metadata["output_tokens"] > 0
chunks = list(model.stream(QUESTION, stream_usage=True))
assert "".join(chunk.content for chunk in chunks) == answer.content
assert sum(chunk.usage_metadata["output_tokens"] for chunk in chunks if chunk.usage_metadata) > 0
print(repr(answer.content))

calling = model.bind_tools([get_weather], tool_choice="required", parallel_tool_calls=False)
asked = calling.invoke(QUESTION)
[call] = asked.tool_calls
assert (call["name"], call["args"]["city"] in ("Paris", "Bern")) == ("get_weather", True), call
result = get_weather.invoke(call)
assert isinstance(result, ToolMessage)
final = model.bind_tools([get_weather], tool_choice="none").invoke([HumanMessage(QUESTION), asked, result])
assert final.content
streamed = None
for chunk in calling.stream(QUESTION):
    streamed = chunk if streamed is None else streamed + chunk
assert [(c["name"], c["args"]) for c in streamed.tool_calls] == [(call["name"], call["args"])]
print(call["args"], repr(final.content))

for method in ("json_schema", "function_calling"):
    city = model.with_structured_output(City, method=method).invoke("Name a city")
    assert isinstance(city, City), city
    print(method, city)

responses = ChatOpenAI(model="base", use_responses_api=True, **options)
text = responses.invoke(QUESTION)
assert text.text == answer.content, text
[call] = responses.bind_tools([get_weather], tool_choice="required").invoke(QUESTION).tool_calls[:1]
assert call["name"] == "get_weather"
assert "".join(chunk.text for chunk in responses.stream(QUESTION)) == answer.content

for change, kind in (({"model": "gone"}, openai.NotFoundError), ({"api_key": "sk-wrong"}, openai.AuthenticationError)):
    try:
        ChatOpenAI(**{"model": "base", **options, **change}).invoke(QUESTION)
    except kind as error:
        print(error.status_code, error.code)
    else:
        raise AssertionError(change)
