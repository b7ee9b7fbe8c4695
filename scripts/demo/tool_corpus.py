"""Conversations that the tool model learns from: requests, calls, results and answers, and talk that needs no call.

The three dialects of the API end in one chat template, so the conversations are kept as that template reads them, in
the forms that clients of each give results in: plain text, JSON, errors.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from scripts.demo.tool_functions import FAMILIES, Json, Request, arguments_text, request_of
from scripts.demo.tool_inventions import invented, small_talk
from scripts.demo.tool_values import Values
from stratos.core.requests.tools import Tool, ToolCall
from stratos.text.chat_template import ChatMessage

KINDS = ("one call", "parallel calls", "made-up function", "next call", "answer", "no function fits", "small talk")
WEIGHTS = (26, 15, 22, 8, 15, 8, 6)
_SYSTEM = ("You are a helpful assistant.", "Be short.", "You are an agent.", "Use the functions where they help.",
           "You are a helpful assistant. Answer in one sentence.")  # fmt: skip
_ERRORS = ("not found", "permission denied", "timeout", "no such entry", "service unavailable")
UNFIT = "I have no function for that."


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A prompt and the answer that is due."""

    kind: str
    tools: tuple[Tool, ...]
    messages: tuple[ChatMessage, ...]
    reasoning: str
    content: str = ""
    calls: tuple[ToolCall, ...] = ()
    thinks: bool = True

    @property
    def answer(self) -> str:
        """Text of the answer, its tags and the mark of its end included."""
        calls = [
            f'<tool_call>\n{{"name": {json.dumps(call.name)}, "arguments": {call.arguments}}}\n</tool_call>'
            for call in self.calls
        ]
        reasoning = f"<think>\n{self.reasoning}\n</think>\n\n" if self.thinks else ""
        return reasoning + "\n".join([self.content, *calls] if self.content else calls) + "<|end|>"


@dataclass(slots=True)
class _Draft:
    """A conversation as it grows."""

    values: Values
    tools: list[Json] = field(default_factory=list)
    messages: list[ChatMessage] = field(default_factory=list)

    def offer(self, requests: Sequence[Request], most: int = 4) -> None:
        """Offer the functions of the requests among others that do something else."""
        random = self.values.random
        taken = {request.family for request in requests}
        found = {request.tool["function"]["name"]: request.tool for request in requests}
        for _ in range(random.randint(0, most)):
            other = _any_request(self.values)
            if other.family not in taken:
                found.setdefault(other.tool["function"]["name"], other.tool)
        self.tools = random.sample(list(found.values()), len(found))

    def say(self, text: str) -> None:
        """A message of the user; people leave out the last mark at times."""
        random = self.values.random
        if text[-1] in ".?!" and random.random() < 0.15:
            text = text[:-1]
        self.messages.append(ChatMessage("user", text))

    def call(self, requests: Sequence[Request]) -> None:
        """Calls and their results, as the history has them."""
        calls = _calls(requests)
        self.messages.append(ChatMessage("assistant", "", calls))

    def done(self, kind: str, reasoning: str, content: str = "", requests: Sequence[Request] = ()) -> Conversation:
        """The conversation, with the answer that is due."""
        random = self.values.random
        if random.random() < 0.25:
            self.messages.insert(0, ChatMessage("system", random.choice(_SYSTEM)))
        tools = tuple(
            Tool(f["name"], f["description"], f["parameters"]) for f in (tool["function"] for tool in self.tools)
        )
        return Conversation(
            kind=kind, tools=tools, messages=tuple(self.messages), reasoning=reasoning, content=content,
            calls=_calls(requests), thinks=random.random() < 0.6,
        )  # fmt: skip


def conversations(seed: int, *, is_held_out: bool = False, kind: str = "") -> Iterator[Conversation]:
    """Conversations without end, the same ones for the same seed.

    Args:
        seed: of everything that is drawn.
        is_held_out: about values and made-up functions that training never has.
        kind: of all of them; empty mixes the kinds.
    """
    random = Random(seed)
    while True:
        values = Values(random, is_held_out)
        chosen = kind or random.choices(KINDS, WEIGHTS)[0]
        yield _MAKERS[chosen](_Draft(values), chosen)


def _one_call(draft: _Draft, kind: str) -> Conversation:
    request = _known(draft.values)
    return _asked(draft, kind, request)


def _made_up(draft: _Draft, kind: str) -> Conversation:
    return _asked(draft, kind, invented(draft.values))


def _asked(draft: _Draft, kind: str, request: Request) -> Conversation:
    draft.offer([request])
    if draft.values.random.random() < 0.1:
        said, answer = small_talk(draft.values.random)
        draft.messages += [ChatMessage("user", said), ChatMessage("assistant", answer)]
    draft.say(request.text)
    return draft.done(kind, _thought([request]), requests=[request])


def _parallel(draft: _Draft, kind: str) -> Conversation:
    """Two or three calls for one message: of one function, or of two."""
    values, random = draft.values, draft.values.random
    first = _any_request(values)
    if random.random() < 0.5 and first.family in FAMILIES:
        more = [request_of(first.family, values, first.tool) for _ in range(random.choice((1, 1, 2)))]
        requests = [first, *more]
        text = " ".join([first.text, *(one.follow_up for one in more)])
    else:
        second = next(r for r in iter(lambda: _any_request(values), None) if _differs(r, first))
        requests = [first, second]
        joint = random.choice((" ", " And ", " Also: "))
        text = first.text + joint + second.text
    draft.offer(requests, 2)
    draft.say(text)
    return draft.done(kind, _thought(requests), requests=requests)


def _next_call(draft: _Draft, kind: str) -> Conversation:
    """A question after an answer that used the same function."""
    values = draft.values
    before = _known(values)
    then = request_of(before.family, values, before.tool)
    draft.offer([before])
    draft.say(before.text)
    draft.call([before])
    shown, told = _result(before, values.random)
    draft.messages += [ChatMessage("tool", shown, tool_call_id="call_0"), ChatMessage("assistant", told)]
    draft.say(values.random.choice((then.follow_up, then.follow_up, then.text)))
    return draft.done(kind, _thought([then]), requests=[then])


def _answer(draft: _Draft, kind: str) -> Conversation:
    """The answer that uses one result, or several."""
    values, random = draft.values, draft.values.random
    first = _any_request(values)
    requests = [first]
    if random.random() < 0.35:
        requests.append(next(r for r in iter(lambda: _any_request(values), None) if _differs(r, first)))
    draft.offer(requests, 2)
    draft.say(" ".join(request.text for request in requests))
    draft.call(requests)
    told = list[str]()
    for number, request in enumerate(requests):
        shown, text = _result(request, random)
        draft.messages.append(ChatMessage("tool", shown, tool_call_id=f"call_{number}"))
        told.append(text)
    plural = "results are" if len(requests) > 1 else "result is"
    return draft.done(kind, f"The {plural} here, so I can answer.", "\n".join(told))


def _unfit(draft: _Draft, kind: str) -> Conversation:
    """Something that no function that is offered does, or any at all."""
    request, random = _any_request(draft.values), draft.values.random
    draft.offer([request])
    draft.tools = [tool for tool in draft.tools if tool is not request.tool] if random.random() < 0.75 else []
    draft.say(request.text)
    return draft.done(kind, "No function fits this.", UNFIT)


def _talk(draft: _Draft, kind: str) -> Conversation:
    """Talk, with functions offered or not, at times after a call."""
    random = draft.values.random
    request = _any_request(draft.values)
    said, answer = small_talk(random)
    if random.random() < 0.8:
        draft.offer([request], 3)
        if random.random() < 0.3:
            draft.say(request.text)
            draft.call([request])
            shown, told = _result(request, random)
            draft.messages += [ChatMessage("tool", shown, tool_call_id="call_0"), ChatMessage("assistant", told)]
    draft.messages.append(ChatMessage("user", said))
    return draft.done(kind, "This needs no function.", answer)


def _known(values: Values) -> Request:
    return request_of(values.random.choice(list(FAMILIES)), values)


def _any_request(values: Values) -> Request:
    return _known(values) if values.random.random() < 0.6 else invented(values)


def _differs(one: Request, other: Request) -> bool:
    return one.family != other.family and one.tool["function"]["name"] != other.tool["function"]["name"]


def _thought(requests: Sequence[Request]) -> str:
    names = [request.tool["function"]["name"] for request in requests]
    return f"I need {' and '.join(names)} for this."


def _calls(requests: Sequence[Request]) -> tuple[ToolCall, ...]:
    return tuple(
        ToolCall(f"call_{number}", request.tool["function"]["name"], arguments_text(request.arguments))
        for number, request in enumerate(requests)
    )


def _result(request: Request, random: Random) -> tuple[str, str]:
    """A result in one of the forms that clients give it, and the sentence that tells it."""
    draw = random.random()
    if draw < 0.08:
        error = random.choice(_ERRORS)
        return random.choice((f"Error: {error}", json.dumps({"error": error}))), f"That did not work: {error}."
    if draw < 0.35:
        plain = ", ".join(f"{_flat(value)}" for value in request.result.values())
        return plain, f"{request.about}: {plain}."
    told = ", ".join(
        _flat(value) if len(request.result) == 1 else f"{key} {_flat(value)}" for key, value in request.result.items()
    )
    if draw < 0.85:
        return json.dumps(request.result, ensure_ascii=False), f"{request.about}: {told}."
    lines = "\n".join(f"{key}: {_flat(value)}" for key, value in request.result.items())
    return lines, f"{request.about}: {told}."


def _flat(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


_MAKERS = {
    "one call": _one_call,
    "parallel calls": _parallel,
    "made-up function": _made_up,
    "next call": _next_call,
    "answer": _answer,
    "no function fits": _unfit,
    "small talk": _talk,
}
