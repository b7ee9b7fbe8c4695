"""``stratos chat``: an interactive conversation with a running platform, streamed.

Ctrl-C ends the answer that is being written and keeps what came; Ctrl-D or /exit ends the conversation.  Reasoning is
shown apart from the answer.  Where functions are offered, each call is shown, and its result asked for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from stratos.cli.data.platform_facts import PlatformFacts
from stratos.common.errors import BadRequest, DependencyDown, StratosError

Message = dict[str, Any]
Delta = dict[str, Any]
Ask = Callable[[str], str]
"""Asks for a line behind a prompt."""
Write = Callable[[str], None]
CONNECT_TIMEOUT_S, READ_TIMEOUT_S = 5.0, 120.0
PROMPT = "> "


class ChatClient:
    """Streams chat completions of one model. ``base_url`` ends in /v1; ``tools`` are functions in OpenAI's form."""

    def __init__(
        self,
        *,
        base_url: str,
        api_key: str,
        model: str,
        max_tokens: int,
        temperature: float | None = None,
        tools: list[dict[str, Any]] | None = None,
    ) -> None:
        self._fixed = {"model": model, "max_tokens": max_tokens, "stream": True, **({"tools": tools} if tools else {})}
        if temperature is not None:
            self._fixed["temperature"] = temperature
        self._http = httpx.Client(
            base_url=base_url,
            headers={"Authorization": f"Bearer {api_key}"},
            timeout=httpx.Timeout(READ_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
            trust_env=False,
        )

    def close(self) -> None:
        self._http.close()

    def stream(self, messages: list[Message]) -> Iterator[Delta]:
        """Pieces of the answer. Closing the iterator aborts the request.

        Raises:
            DependencyDown: there is no answer. BadRequest: the gateway's own message.
        """
        try:
            with self._http.stream("POST", "chat/completions", json={**self._fixed, "messages": messages}) as response:
                if response.status_code != 200:
                    raise BadRequest(_error_text(response.read(), response.status_code))
                yield from _deltas(response.iter_lines())
        except httpx.HTTPError as error:
            raise DependencyDown(f"the gateway does not answer: {error or type(error).__name__}") from error


@dataclass(slots=True)
class _Shown:
    """An answer while it is written."""

    write: Write
    content: list[str] = field(default_factory=list)
    calls: dict[int, dict[str, str]] = field(default_factory=dict)
    """Id, name and arguments of each, by index."""
    part: str = ""
    """Part that is being written: the answer itself, its reasoning, or a call by its index."""

    def add(self, delta: Delta) -> None:
        """Write a piece."""
        if thought := delta.get("reasoning"):
            self._begin("reasoning", "[reasoning] ")
            self.write(thought)
        if text := delta.get("content"):
            self._begin("answer", "[answer] " if self.part else "")
            self.content.append(text)  # first, for Ctrl-C may come while it is written
            self.write(text)
        for call in delta.get("tool_calls") or ():
            self._add_call(call)

    def _add_call(self, piece: Delta) -> None:
        index, function = piece.get("index", 0), piece.get("function") or {}
        call = self.calls.setdefault(index, {"id": "", "name": "", "arguments": ""})
        for name, text in (("id", piece.get("id")), ("name", function.get("name"))):
            call[name] = text or call[name]
        call["arguments"] += function.get("arguments") or ""
        self._begin(f"call {index}", f"[call] {call['name']} ")
        self.write(function.get("arguments") or "")

    def _begin(self, part: str, title: str) -> None:
        if part != self.part:
            self.write(f"\n{title}" if self.part else title)
            self.part = part

    def message(self, *, is_whole: bool) -> Message:
        """The answer as a message of the conversation; one that was cut short has no calls."""
        told = [
            {"id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": call["arguments"]}}
            for call in (self.calls.values() if is_whole else ())
        ]
        return {"role": "assistant", "content": "".join(self.content), **({"tool_calls": told} if told else {})}


def converse(client: ChatClient, *, ask: Ask, write: Write, system: str = "") -> None:
    """Read, answer, repeat, until the input ends."""
    messages: list[Message] = [{"role": "system", "content": system}] if system else []
    while (text := _asked(ask, write, PROMPT)) is not None:
        if text in ("/exit", "/quit"):
            return
        if not text:
            continue
        turn: list[Message] = [{"role": "user", "content": text}]
        try:
            if not _take_turn(client, messages, turn, ask, write):
                return
            messages += turn
        except StratosError as error:
            write(f"error: {error.message}\n")


def _take_turn(client: ChatClient, before: list[Message], turn: list[Message], ask: Ask, write: Write) -> bool:
    """Add an answer to ``turn``, and what follows the results of its calls; false where the input ends."""
    while True:
        answer = _answer(client, [*before, *turn], write)
        turn.append(answer)
        if not answer.get("tool_calls"):
            return True
        for call in answer["tool_calls"]:
            result = _asked(ask, write, f"result of {call['function']['name']}> ")
            if result is None:
                return False
            turn.append({"role": "tool", "tool_call_id": call["id"], "content": result})


def _asked(ask: Ask, write: Write, prompt: str) -> str | None:
    try:
        return ask(prompt).strip()
    except (EOFError, KeyboardInterrupt):
        write("\n")
        return None


def _answer(client: ChatClient, messages: list[Message], write: Write) -> Message:
    shown, is_whole = _Shown(write), False
    stream = client.stream(messages)
    try:
        for delta in stream:
            shown.add(delta)
        write("\n")
        is_whole = True
    except KeyboardInterrupt:
        write("\n[aborted]\n")
    finally:
        stream.close()  # type: ignore[attr-defined]  # a generator; its end closes the response
    return shown.message(is_whole=is_whole)


def _deltas(lines: Iterator[str]) -> Iterator[Delta]:
    for line in lines:
        data = line.removeprefix("data:").strip() if line.startswith("data:") else ""
        if data == "[DONE]":
            return
        if not data:
            continue
        event = json.loads(data)
        if "error" in event:
            raise DependencyDown(str(event["error"].get("message", "the stream broke")))
        for choice in event.get("choices", ()):
            yield choice.get("delta", {})


def _error_text(body: bytes, status: int) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"the gateway answered with status {status}"


def read_tools(path: Path) -> list[dict[str, Any]]:
    """Functions of a JSON file: a list of tools in OpenAI's form, or of what those have in ``function``.

    Raises:
        BadRequest: no such list.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadRequest(f"{path} cannot be read: {error}", param="--tools") from error
    if not isinstance(found, list) or not all(isinstance(tool, dict) for tool in found):
        raise BadRequest(f"{path} must hold a JSON list of functions", param="--tools")
    return [tool if "function" in tool else {"type": "function", "function": tool} for tool in found]


def chat_client(
    facts: PlatformFacts,
    *,
    model: str,
    max_tokens: int,
    temperature: float | None = None,
    tools: Path | None = None,
) -> ChatClient:
    """A client for a platform of this machine."""
    return ChatClient(
        base_url=facts.base_url,
        api_key=facts.api_key,
        model=model or facts.model,
        max_tokens=max_tokens,
        temperature=temperature,
        tools=None if tools is None else read_tools(tools),
    )
