"""Harmony, of gpt-oss: the whole output is messages with a channel each; calls have a recipient.

    <|channel|>analysis<|message|>Let me see.<|end|><|start|>assistant<|channel|>commentary to=functions.f
    <|constrain|>json<|message|>{"a": 1}<|call|>

The channel "analysis" is reasoning, all others are text.  Source: the chat template of openai/gpt-oss-20b, which puts
the recipient before the channel, and the harmony format's own documents, in which it stands after it.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from stratos.text.output.events import OutputEvent, ReasoningDelta, TextDelta
from stratos.text.output.json_text import is_json
from stratos.text.output.reader import Marks, Reading, TextReader
from stratos.text.output.syntax import CallCount, CallForm, CallSyntax, FrameForm

CHANNEL, MESSAGE, START, CONSTRAIN = "<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"
END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"
SPECIAL = (CHANNEL, MESSAGE, START, CONSTRAIN, END, CALL, RETURN)
_RECIPIENT = re.compile(r"\bto=(?:functions\.)?([\w.-]+)")
_ENDS, _MESSAGE = Marks((END, CALL, RETURN, START)), Marks((MESSAGE,))


def read_frame(reader: TextReader, calls: CallCount) -> Reading[None]:
    """Read all messages; text without a header is text."""
    while True:
        header = yield from _header(reader)
        if header is None:
            return
        recipient = _RECIPIENT.search(header)
        if recipient is not None:
            yield calls.begin(recipient[1])
            arguments = yield from _body(reader, calls.arguments)
            yield calls.end(is_complete=is_json(arguments))
        else:
            is_reasoning = f"{CHANNEL}analysis" in header
            yield from _body(reader, ReasoningDelta if is_reasoning else TextDelta)


def _header(reader: TextReader) -> Reading[str | None]:
    """Text before a message; ``None`` at the end, where a header that leads to nothing is dropped."""
    while (found := _MESSAGE.find(reader.text)) is None:
        if reader.is_ended:
            if reader.text.strip() and CHANNEL not in reader.text and START not in reader.text:
                yield TextDelta(reader.text)
            return None
        yield None
    header = reader.take(found.start())
    reader.take(len(MESSAGE))
    return header


def _body(reader: TextReader, show: Callable[[str], OutputEvent]) -> Reading[str]:
    """Show a message up to its end, and return it; the mark of the last one ends the output, and is no part of it."""
    shown = list[str]()
    while (found := _ENDS.find(reader.text)) is None:
        held = 0 if reader.is_ended else _ENDS.num_begun(reader.text)
        if text := reader.take(len(reader.text) - held):
            shown.append(text)
            yield show(text)
        if reader.is_ended:
            return "".join(shown)
        yield None
    if text := reader.take(found.start()):
        shown.append(text)
        yield show(text)
    if found.group() != START:
        reader.take(len(found.group()))
    return "".join(shown)


def _read(reader: TextReader, mark: str, calls: CallCount) -> Reading[None]:
    """Never asked: the frame reads everything."""
    yield from read_frame(reader, calls)


HARMONY = CallSyntax(
    name="harmony",
    marks=(CHANNEL,),
    read=_read,
    form=CallForm(
        before=f"{CHANNEL}commentary to=functions.{{name}} {CONSTRAIN}json{MESSAGE}",
        after="",
        between=f"{CALL}{START}assistant",
        frame=FrameForm(
            reasoning=f"{CHANNEL}analysis{MESSAGE}",
            texts=(f"{CHANNEL}commentary{MESSAGE}", f"{CHANNEL}final{MESSAGE}"),
            end=END,
            following=f"{START}assistant",
            barred=(CALL, RETURN, START),
        ),
    ),
    frame=read_frame,
    special=SPECIAL,
)
