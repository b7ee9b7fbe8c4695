"""Tokenizer and prompts of the tool model, and the judge that reads its outputs; nothing here needs torch."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.demo.tool_corpus import Conversation
from stratos.text.chat_template import ChatTemplate, TemplateUse
from stratos.text.output.chat_format import ChatFormat
from stratos.text.output.events import CallArguments, CallBegin, TextDelta
from stratos.text.output.parser import OutputParser, OutputShape
from stratos.text.tokenizer import Tokenizer

ADDED = tuple(f"<{mark}{tag}>" for tag in ("think", "tool_call", "tool_response", "tools") for mark in ("", "/"))
"""Special, so that no text of a client can be read as one."""
TEMPLATE = Path(__file__).with_name("tool_chat_template.jinja")


@dataclass(frozen=True, slots=True)
class Example:
    """One conversation as tokens; the first ``num_prompt`` are not learned."""

    ids: list[int]
    num_prompt: int


def write_tokenizer(base: Path, out: Path) -> None:
    """The base's tokenizer with the added tokens, other cuts, and the chat template of tools."""
    out.mkdir(parents=True, exist_ok=True)
    definition = json.loads((base / "tokenizer.json").read_text(encoding="utf-8"))
    first = len(definition["model"]["vocab"])
    definition["added_tokens"] += [
        {"id": first + number, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": True}
        for number, text in enumerate(ADDED)
    ]  # fmt: skip
    definition["pre_tokenizer"] = {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": r" (?=\S)"}, "behavior": "Isolated", "invert": False},
            {"type": "Digits", "individual_digits": True},
            {"type": "Punctuation", "behavior": "Isolated"},
            definition["pre_tokenizer"],
        ],
    }
    (out / "tokenizer.json").write_text(json.dumps(definition, ensure_ascii=False), encoding="utf-8")
    config = json.loads((base / "tokenizer_config.json").read_text(encoding="utf-8"))
    config["extra_special_tokens"] = [*config["extra_special_tokens"], *ADDED]
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    shutil.copy(TEMPLATE, out / "chat_template.jinja")


class Encoder:
    """Turns conversations into tokens, by the template that gateways render."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer = Tokenizer.load(folder)
        self._template = ChatTemplate((folder / "chat_template.jinja").read_text(encoding="utf-8"), self.tokenizer)

    def prompt(self, conversation: Conversation) -> list[int]:
        """Everything before the answer."""
        use = TemplateUse(values={} if conversation.thinks else {"enable_thinking": False})
        return self._template.encode(conversation.messages, conversation.tools, use)

    def example(self, conversation: Conversation) -> Example:
        """Prompt and answer."""
        prompt = self.prompt(conversation)
        return Example(prompt + self.tokenizer.encode(conversation.answer), len(prompt))


class Judge:
    """Reads outputs as a gateway does."""

    def __init__(self, form: ChatFormat) -> None:
        self._form = form

    def read(self, text: str) -> tuple[list[tuple[str, Any]], str]:
        """Calls and content of an output."""
        parser = OutputParser(OutputShape(syntax=self._form.syntax, reasoning=self._form.reasoning))
        names, arguments, content = list[str](), list[str](), ""
        for event in [*parser.feed(text), *parser.finish()]:
            match event:
                case CallBegin(_, name):
                    names.append(name)
                    arguments.append("")
                case CallArguments(index, piece):
                    arguments[index] += piece
                case TextDelta(piece):
                    content += piece
        return [(name, _value(text)) for name, text in zip(names, arguments, strict=True)], content.strip()

    def verdict(self, conversation: Conversation, text: str) -> dict[str, bool]:
        """What of one case is right."""
        calls, content = self.read(text)
        due = [(call.name, json.loads(call.arguments)) for call in conversation.calls]
        right_names = [name for name, _ in calls] == [name for name, _ in due]
        return {"functions": right_names, "right": calls == due and content == conversation.content}


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
