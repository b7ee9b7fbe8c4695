"""`stratos chat` against an HTTP server that answers like the gateway."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from stratos.cli.chat import ChatClient, converse, read_tools
from stratos.common.errors import BadRequest

TOOLS = [{"type": "function", "function": {"name": "weather"}}]
CALLING = [
    {"reasoning": "Let me "},
    {"reasoning": "see."},
    {"content": "I look."},
    {"tool_calls": [{"index": 0, "id": "call-1", "function": {"name": "weather", "arguments": ""}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": '{"city": '}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": '"Oslo"}'}}]},
    {"tool_calls": [{"index": 1, "id": "call-2", "function": {"name": "weather", "arguments": "{}"}}]},
]


class Gateway(BaseHTTPRequestHandler):
    seen: ClassVar[list[dict]] = []

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        Gateway.seen.append({"path": self.path, "key": self.headers["Authorization"], **body})
        if body["model"] == "missing":
            self._send(404, json.dumps({"error": {"message": "no model 'missing'"}}))
            return
        deltas = [{"content": piece} for piece in ("Hel", "lo", None)]
        if body["model"] == "calls" and body["messages"][-1]["role"] == "user":
            deltas = CALLING
        chunks = [{"choices": [{"delta": delta}]} for delta in deltas]
        if body["model"] == "breaks":
            chunks = [chunks[0], {"error": {"message": "the worker is gone"}}]
        self._send(200, "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n")

    def _send(self, status: int, text: str) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *args: object) -> None:
        return


@pytest.fixture
def base_url() -> Iterator[str]:
    Gateway.seen = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Gateway) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()
        thread.join()


def talk(base_url: str, inputs: list[str | type[BaseException]], model: str = "base") -> str:
    written: list[str] = []
    left = iter(inputs)

    def ask(prompt: str) -> str:
        written.append(prompt)
        item = next(left, EOFError)
        if not isinstance(item, str):
            raise item
        return item

    tools = TOOLS if model == "calls" else None
    client = ChatClient(base_url=base_url, api_key="sk-test", model=model, max_tokens=7, tools=tools)
    try:
        converse(client, ask=ask, write=written.append, system="Be brief.")
    finally:
        client.close()
    return "".join(written)


def test_the_conversation_is_sent_along(base_url: str) -> None:
    assert talk(base_url, ["hi", "", "more"]).count("Hello\n") == 2
    assert Gateway.seen[0]["path"] == "/v1/chat/completions"
    assert Gateway.seen[0]["key"] == "Bearer sk-test"
    assert Gateway.seen[0]["max_tokens"] == 7
    assert [m["content"] for m in Gateway.seen[1]["messages"]] == ["Be brief.", "hi", "Hello", "more"]


@pytest.mark.parametrize(("model", "message"), [("missing", "no model 'missing'"), ("breaks", "the worker is gone")])
def test_errors_are_told_and_the_conversation_goes_on(base_url: str, model: str, message: str) -> None:
    assert f"error: {message}" in talk(base_url, ["hi", "again"], model)
    assert len(Gateway.seen) == 2
    assert [m["content"] for m in Gateway.seen[1]["messages"]] == ["Be brief.", "again"]


def test_a_dead_gateway_is_told() -> None:
    assert "the gateway does not answer" in talk("http://127.0.0.1:9/v1", ["hi"])


@pytest.mark.parametrize("end", [EOFError, KeyboardInterrupt, "/exit"])
def test_ways_out(base_url: str, end: str | type[BaseException]) -> None:
    talk(base_url, [end, "never sent"])
    assert Gateway.seen == []


def test_ctrl_c_aborts_the_answer_and_keeps_what_came(base_url: str) -> None:
    written: list[str] = []

    def write(text: str) -> None:
        written.append(text)
        if text == "Hel":
            raise KeyboardInterrupt

    client = ChatClient(base_url=base_url, api_key="k", model="base", max_tokens=7)
    inputs = iter(["hi", "more", "/exit"])
    converse(client, ask=lambda prompt: next(inputs), write=write)
    client.close()
    assert "[aborted]" in "".join(written)
    assert [m["content"] for m in Gateway.seen[1]["messages"]] == ["hi", "Hel", "more"]


def test_reasoning_and_calls_are_shown_and_results_are_asked_for(base_url: str) -> None:
    told = talk(base_url, ["hi", "rain", "sun", "more"], "calls")
    assert told.startswith(
        "> [reasoning] Let me see.\n[answer] I look.\n"
        '[call] weather {"city": "Oslo"}\n[call] weather {}\nresult of weather> result of weather> Hello\n> '
    )
    first, second, third = Gateway.seen[:3]
    assert first["tools"] == TOOLS
    calls = second["messages"][2]["tool_calls"]
    assert [call["function"]["arguments"] for call in calls] == ['{"city": "Oslo"}', "{}"]
    results = [(m["tool_call_id"], m["content"]) for m in second["messages"] if m["role"] == "tool"]
    assert results == [("call-1", "rain"), ("call-2", "sun")]
    assert [m["role"] for m in third["messages"]] == [
        "system",
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
        "user",
    ]


def test_an_end_instead_of_a_result_ends_the_conversation(base_url: str) -> None:
    assert talk(base_url, ["hi", "rain", EOFError], "calls").endswith("result of weather> result of weather> \n")
    assert len(Gateway.seen) == 1


def test_tools_are_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "tools.json"
    for content in ('[{"name": "weather"}]', '[{"type": "function", "function": {"name": "weather"}}]'):
        file.write_text(content)
        assert read_tools(file) == TOOLS
    for content in ("{}", "[1]", "no JSON"):
        file.write_text(content)
        with pytest.raises(BadRequest) as caught:
            read_tools(file)
        assert caught.value.param == "--tools"
