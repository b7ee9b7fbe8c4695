"""``stratos chat``: an interactive conversation with a running platform, streamed.

Ctrl-C ends the answer that is being written and keeps what came; Ctrl-D or /exit ends the conversation.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import httpx

from stratos.cli.data.platform_facts import PlatformFacts
from stratos.common.errors import BadRequest, DependencyDown, StratosError

Message = dict[str, str]
CONNECT_TIMEOUT_S, READ_TIMEOUT_S = 5.0, 120.0


class ChatClient:
    """Streams chat completions of one model. ``base_url`` ends in /v1."""

    def __init__(self, *, base_url: str, api_key: str, model: str, max_tokens: int) -> None:
        self._model = model
        self._max_tokens = max_tokens
        self._http = httpx.Client(
            base_url=base_url,
            headers={"Authorization": f"Bearer {api_key}"},
            timeout=httpx.Timeout(READ_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
            trust_env=False,
        )

    def close(self) -> None:
        self._http.close()

    def stream(self, messages: list[Message]) -> Iterator[str]:
        """Pieces of the answer. Closing the iterator aborts the request.

        Raises:
            DependencyDown: there is no answer. BadRequest: the gateway's own message.
        """
        body = {"model": self._model, "messages": messages, "max_tokens": self._max_tokens, "stream": True}
        try:
            with self._http.stream("POST", "chat/completions", json=body) as response:
                if response.status_code != 200:
                    raise BadRequest(_error_text(response.read(), response.status_code))
                yield from _pieces(response.iter_lines())
        except httpx.HTTPError as error:
            raise DependencyDown(f"the gateway does not answer: {error or type(error).__name__}") from error


def converse(client: ChatClient, *, ask: Callable[[], str], write: Callable[[str], None], system: str = "") -> None:
    """Read, answer, repeat, until the input ends."""
    messages: list[Message] = [{"role": "system", "content": system}] if system else []
    while True:
        try:
            text = ask().strip()
        except (EOFError, KeyboardInterrupt):
            write("\n")
            return
        if text in ("/exit", "/quit"):
            return
        if not text:
            continue
        messages.append({"role": "user", "content": text})
        try:
            messages.append({"role": "assistant", "content": _answer(client, messages, write)})
        except StratosError as error:
            write(f"error: {error.message}\n")
            messages.pop()


def _answer(client: ChatClient, messages: list[Message], write: Callable[[str], None]) -> str:
    parts: list[str] = []
    stream = client.stream(messages)
    try:
        for piece in stream:
            parts.append(piece)
            write(piece)
        write("\n")
    except KeyboardInterrupt:
        write("\n[aborted]\n")
    finally:
        stream.close()  # type: ignore[attr-defined]  # a generator; its end closes the response
    return "".join(parts)


def _pieces(lines: Iterator[str]) -> Iterator[str]:
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
            if piece := choice.get("delta", {}).get("content"):
                yield piece


def _error_text(body: bytes, status: int) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"the gateway answered with status {status}"


def chat_client(facts: PlatformFacts, *, model: str, max_tokens: int) -> ChatClient:
    """A client for a platform of this machine."""
    return ChatClient(base_url=facts.base_url, api_key=facts.api_key, model=model or facts.model, max_tokens=max_tokens)
