"""Chat messages -> token ids, by the model's own Jinja template, rendered in a sandbox.

Control tokens may come from the template alone.  Steps:
    1. Spellings of special tokens inside the messages are masked with marks that cannot be guessed.
    2. The template is rendered; it sees ordinary text, so trimming and conditions work as written.
    3. Without marks the result is encoded as a whole, special tokens read, none added.
    4. With marks it is cut at the special tokens of the template; what lies between is unmasked and encoded
       as plain text.

A role that not every template knows is tried: a message that the template leaves out is refused, never lost.
"""

from __future__ import annotations

import json
import re
import secrets
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jinja2
from jinja2.meta import find_undeclared_variables

from stratos.common.errors import BadRequest, InvalidCheckpoint
from stratos.core.files.model_files import read_json
from stratos.core.requests.pins import CacheMark
from stratos.core.requests.tools import RAW_ARGUMENTS, Tool, ToolCall
from stratos.text.template_environment import Now, TemplateRefusal, template_environment, utc_now
from stratos.text.tokenizer import Tokenizer

KNOWN_ROLES = frozenset({"system", "user", "assistant", "tool"})
"""Roles that templates are written for."""
_ArgumentForm = Callable[[str], Any]
"""Text of a call's arguments -> what the template reads."""
_FAULTS = (jinja2.TemplateError, ArithmeticError, AttributeError, LookupError, RecursionError, ValueError)
"""What a template meets in conversations, and values of clients, that it was not written for; besides ``TypeError``."""
_CANNOT_RENDER = "the model's chat template cannot render these messages"


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message; ``content`` is the text of all its parts."""

    role: str
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    """Calls that the message asked for."""
    tool_call_id: str = ""
    """The call whose result the message is."""
    reasoning: str = ""
    """Reasoning before the content; the template keeps or drops it."""
    name: str = ""
    """Name of its author, or of the function whose result it is; the template reads or drops it."""
    marks: tuple[CacheMark, ...] = field(default=(), compare=False)
    """Places in the content up to which the prompt is to be kept."""

    @property
    def texts(self) -> tuple[str, ...]:
        """Everything in it that a client has written."""
        calls = (text for call in self.tool_calls for text in call.texts)
        role = "" if self.role in KNOWN_ROLES else self.role
        return (self.content, *calls, *filter(None, (self.reasoning, role, self.name)))


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateUse:
    """How a conversation is rendered."""

    begins_answer: bool = True
    """It ends where an answer of the assistant begins."""
    continues_last: bool = False
    """It ends with the last message's content, and the output goes on with that."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """Values that the template reads besides the messages, as ``enable_thinking``."""
    adds_special: bool = False
    """Ids of what it renders get the tokenizer's special tokens, too, as those of a plain text do."""


PLAIN_USE = TemplateUse()


def read_template(folder: Path) -> str | None:
    """Source of the model's chat template, or ``None`` when it has none (a plain base model)."""
    path = folder / "chat_template.jinja"
    if path.exists():
        return path.read_text(encoding="utf-8")
    config = folder / "tokenizer_config.json"
    template = read_json(config).get("chat_template") if config.exists() else None
    if isinstance(template, list):
        template = next((t.get("template") for t in template if t.get("name") == "default"), None)
    return template if isinstance(template, str) else None


class ChatTemplate:
    """Renders and encodes conversations of one model.

    Args:
        source: of the template.
        tokenizer: of the model.
        now: the time, for templates that tell the date.

    Raises:
        InvalidCheckpoint: the template is not valid Jinja.
    """

    def __init__(self, source: str, tokenizer: Tokenizer, now: Now = utc_now) -> None:
        environment = template_environment(now)
        try:
            self._template = environment.from_string(source)
            self._read = find_undeclared_variables(environment.parse(source))
        except jinja2.TemplateError as error:
            raise InvalidCheckpoint(f"the chat template is not valid: {error}") from error
        self.source = source
        self._tokenizer = tokenizer
        self._names = {
            key: _token_text(tokenizer.config.get(key)) for key in ("bos_token", "eos_token", "unk_token", "pad_token")
        }
        spellings = sorted(tokenizer.special_tokens, key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, spellings))) if spellings else None
        self._cut = re.compile("|".join(f"({self._cut_pattern(s)})" for s in spellings)) if spellings else None
        self._cut_ids = [tokenizer.special_tokens[s] for s in spellings]

    def reads(self, name: str) -> bool:
        """Whether the template looks at a value of this name; a field of a message is none."""
        return name in self._read

    def encode(
        self, messages: Sequence[ChatMessage], tools: Sequence[Tool] = (), use: TemplateUse = PLAIN_USE
    ) -> list[int]:
        """Ids of the conversation.

        Args:
            messages: of the conversation.
            tools: shown to a template that knows them.
            use: how it ends, and what else the template reads.

        Raises:
            BadRequest: the template refuses the conversation, or leaves out a message.
        """
        mask = _Mask(self._special)
        rendered = self._told(messages, tools, use, mask)
        ids = self._encode_masked(rendered, mask) if mask.hidden else self._tokenizer.encode(rendered)
        if use.adds_special:
            before, behind = self._tokenizer.surroundings
            return [*before, *ids, *behind]
        return ids

    def encode_before(
        self, messages: Sequence[ChatMessage], tools: Sequence[Tool], use: TemplateUse, signs: Sequence[str]
    ) -> tuple[list[int], list[int]]:
        """Ids of what a conversation begins with: up to the last of the texts ``signs``, all of which are left out.

        Returns:
            The ids, and how many of them are before each sign; 0 for one that is not in the rendered text.

        Raises:
            BadRequest: as ``encode``.
        """
        mask = _Mask(self._special)
        rendered, places = _without(self._told(messages, tools, use, mask), signs)
        before = self._tokenizer.surroundings[0] if use.adds_special else []
        if mask.hidden:
            ids, counts = self._count_masked(rendered, mask, places)
        else:
            ids, ends = self._tokenizer.encode_ends(rendered, is_plain=False)
            counts = [bisect_right(ends, place) for place in places]
        return [*before, *ids], [count and count + len(before) for count in counts]

    def _told(self, messages: Sequence[ChatMessage], tools: Sequence[Tool], use: TemplateUse, mask: _Mask) -> str:
        told = [mask.hide_all(tool.definition()) for tool in tools]
        values = {**self._names, **mask.hide_all(dict(use.values))}
        values |= {"tools": told or None, "add_generation_prompt": use.begins_answer and not use.continues_last}
        if use.continues_last:
            messages = [*messages[:-1], replace(messages[-1], content=messages[-1].content + mask.end)]
        rendered = mask.without_witnesses(self._rendered(messages, values, mask))
        if use.continues_last:
            rendered, found, _ = rendered.rpartition(mask.end)
            if not found:
                raise BadRequest("the model's chat template cannot continue the last message", param="messages")
        return rendered

    def _rendered(self, messages: Sequence[ChatMessage], values: Mapping[str, Any], mask: _Mask) -> str:
        """The text of a conversation, with arguments of calls in the first form that the template takes."""
        later = list[_ArgumentForm]()
        try:
            return self._render(_mappings(messages, mask, _parsed), values)
        except TypeError:  # a template that puts arguments together as text, as DeepSeek's does
            later, refusal = [str], BadRequest(_CANNOT_RENDER, param="messages")
        except BadRequest as error:
            refusal = error
        if not all(isinstance(_parsed(call.arguments), dict) for one in messages for call in one.tool_calls):
            later.append(_as_object)
        for form in later:
            try:
                return self._render(_mappings(messages, mask, form), values)
            except TypeError:
                continue
            except BadRequest as error:
                refusal = error
        raise refusal

    def _render(self, conversation: list[dict[str, Any]], values: Mapping[str, Any]) -> str:
        try:
            return self._template.render({**values, "messages": conversation})
        except TemplateRefusal as error:
            text = f"the model's chat template refuses these messages: {error}"
            raise BadRequest(text[:500], param="messages") from error
        except _FAULTS as error:
            raise BadRequest(_CANNOT_RENDER, param="messages") from error

    def _encode_masked(self, rendered: str, mask: _Mask) -> list[int]:
        ids: list[int] = []
        for begin, end, special in self._cut_texts(rendered):
            ids += self._tokenizer.encode_plain(mask.show(rendered[begin:end])) if end > begin else []
            ids += special
        return ids

    def _count_masked(self, rendered: str, mask: _Mask, places: Sequence[int]) -> tuple[list[int], list[int]]:
        """The same, and how many of the ids are before each place."""
        ids, counts = list[int](), [0] * len(places)
        for begin, end, special in self._cut_texts(rendered):
            found, ends = self._tokenizer.encode_ends(mask.show(rendered[begin:end]), is_plain=True)
            for index, place in enumerate(places):
                if place > begin:
                    counts[index] = len(ids) + bisect_right(ends, len(mask.show(rendered[begin : min(place, end)])))
            ids += [*found, *special]
        return ids, counts

    def _cut_texts(self, rendered: str) -> Iterator[tuple[int, int, Sequence[int]]]:
        """Begin and end of each text between special tokens, and the token behind it; none is behind the last one."""
        assert self._cut is not None
        begin = 0
        for match in self._cut.finditer(rendered):
            assert match.lastindex is not None
            yield begin, match.start(), self._cut_ids[match.lastindex - 1 : match.lastindex]
            begin = match.end()
        yield begin, len(rendered), ()

    def _cut_pattern(self, spelling: str) -> str:
        strips_left, strips_right = self._tokenizer.strip_rules[spelling]
        return (r"\s*" if strips_left else "") + re.escape(spelling) + (r"\s*" if strips_right else "")


_MARK = re.compile("\ue000([0-9a-f]{16}):([0-9]+)\ue001")
"""Of any conversation: a pattern with a nonce in it would be compiled for each."""
_WITNESS = re.compile("\ue000[0-9a-f]{16}:role[0-9]+\ue001")


class _Mask:
    """Hides spellings of special tokens from template and tokenizer; the marks hold a nonce per conversation."""

    def __init__(self, special: re.Pattern[str] | None) -> None:
        self._special = special
        self._nonce = secrets.token_hex(8)
        self.end = f"\ue000{self._nonce}:end\ue001"
        """Mark behind a content that the output goes on with."""
        self.hidden: list[str] = []
        self.witnesses: dict[str, str] = {}
        """Role of a message by the mark behind its content."""

    def hide(self, content: str) -> str:
        return self._special.sub(self._replace, content) if self._special else content

    def hide_all(self, value: Any) -> Any:
        """``value`` with every text in it masked, names of fields too."""
        if isinstance(value, str):
            return self.hide(value)
        if isinstance(value, dict):
            return {self.hide(key): self.hide_all(child) for key, child in value.items()}
        return [self.hide_all(child) for child in value] if isinstance(value, list) else value

    def witness(self, role: str) -> str:
        """A mark that is in the rendered text if the template writes messages of this role."""
        mark = f"\ue000{self._nonce}:role{len(self.witnesses)}\ue001"
        self.witnesses[mark] = role
        return mark

    def without_witnesses(self, rendered: str) -> str:
        """The rendered text; raises ``BadRequest`` where a message is not in it."""
        if not self.witnesses:
            return rendered
        found = set(_WITNESS.findall(rendered))
        for mark, role in self.witnesses.items():
            if mark not in found:
                text = f"the model's chat template leaves out messages of the role {role!r}"
                raise BadRequest(text, param="messages", code="unsupported_parameter")
        return _WITNESS.sub(lambda match: "" if match[0] in self.witnesses else match[0], rendered)

    def show(self, text: str) -> str:
        return _MARK.sub(self._shown, text)

    def _shown(self, match: re.Match[str]) -> str:
        return self.hidden[int(match[2])] if match[1] == self._nonce else match[0]

    def _replace(self, match: re.Match[str]) -> str:
        self.hidden.append(match[0])
        return f"\ue000{self._nonce}:{len(self.hidden) - 1}\ue001"


def _without(rendered: str, signs: Sequence[str]) -> tuple[str, list[int]]:
    """The text before the last sign, without all of them, and the place of each in it; 0 for one that is not there."""
    places, parts, begin, num_chars = dict[str, int](), list[str](), 0, 0
    for match in re.finditer("|".join(map(re.escape, signs)), rendered):
        parts.append(rendered[begin : match.start()])
        num_chars, begin = num_chars + match.start() - begin, match.end()
        places.setdefault(match[0], num_chars)
    return "".join(parts), [places.get(sign, 0) for sign in signs]


def _mappings(messages: Sequence[ChatMessage], mask: _Mask, form: _ArgumentForm) -> list[dict[str, Any]]:
    mask.witnesses.clear()
    return [_mapping(message, mask, form) for message in messages]


def _mapping(message: ChatMessage, mask: _Mask, form: _ArgumentForm) -> dict[str, Any]:
    """A message as templates read it; fields that it does not have are not defined there."""
    found: dict[str, Any] = {"role": message.role, "content": mask.hide(message.content)}
    if message.role not in KNOWN_ROLES:
        found = {"role": mask.hide(message.role), "content": found["content"] + mask.witness(message.role)}
    if message.tool_calls:
        found["tool_calls"] = [_call_mapping(call, mask, form) for call in message.tool_calls]
    if message.tool_call_id:
        found["tool_call_id"] = mask.hide(message.tool_call_id)
    if message.name:
        found["name"] = mask.hide(message.name)
    if message.reasoning:
        found["reasoning_content"] = found["reasoning"] = mask.hide(message.reasoning)
        if not (message.content and message.tool_calls):  # gpt-oss's template takes one of both beside calls
            found["thinking"] = found["reasoning"]
    return found


def _call_mapping(call: ToolCall, mask: _Mask, form: _ArgumentForm) -> dict[str, Any]:
    function = {"name": mask.hide(call.name), "arguments": mask.hide_all(form(call.arguments))}
    return {"id": mask.hide(call.id), "type": "function", "function": function}


def _parsed(arguments: str) -> Any:
    """The object that they are the text of, for most templates write it in their own way; else that text."""
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments


def _as_object(arguments: str) -> Any:
    """The same for templates that go through its fields, as Qwen 3 Coder's: what is no object becomes the only one."""
    found = _parsed(arguments)
    return found if isinstance(found, dict) else {RAW_ARGUMENTS: arguments}


def _token_text(value: Any) -> str:
    """``tokenizer_config.json`` names a token by its text or by an object with ``content``."""
    content = value.get("content") if isinstance(value, dict) else value
    return content if isinstance(content, str) else ""
