"""The Jinja environment of a model's chat template: a sandbox with what published templates are written for.

strftime_now      the date, in UTC, so that all gateways tell the same one
raise_exception   refuses a conversation
tojson            as ``json.dumps`` has it, not as web pages want it
generation        a tag around the assistant's text, for those that train; loops may break and continue
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NoReturn

from jinja2 import Environment, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

Now = Callable[[], datetime]


def utc_now() -> datetime:
    """The time of the machine."""
    return datetime.now(UTC)


class TemplateRefusal(Exception):
    """The template called ``raise_exception``."""


class GenerationTag(Extension):
    """``{% generation %}``: what is within is written as it is.

    Args:
        environment: made by Jinja.
    """

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self.tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        """The statements up to the end tag, with a scope of their own, as they have in transformers."""
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


def template_environment(now: Now) -> ImmutableSandboxedEnvironment:
    """An environment for one template.

    Args:
        now: the time, in the zone whose date is told.
    """
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", GenerationTag]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: now().strftime(form)
    return environment


def _raise_exception(message: object) -> NoReturn:
    raise TemplateRefusal(str(message))


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
