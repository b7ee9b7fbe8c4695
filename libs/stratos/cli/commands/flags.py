"""Flags of a command that are fields of a record: each is declared once, with its help and its default.

A field is a flag if its annotation carries a ``typer.Option``, or the text of its help: records of libraries that do
not know typer have that.  Other fields are for the command to fill in.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Annotated, Any, get_type_hints

import typer
from typer.models import OptionInfo


def with_flags_of(record: Callable[..., Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the flags of a record.

    The command's parameter ``make`` makes the record from the flags, and from the other fields as keyword arguments;
    it is called within the command, so that a refusal of the record ends it as any other error does.  In ``--help`` the
    flags stand where ``make`` stands among the parameters.

    Args:
        record: a dataclass.
    """
    flags = list(_flags(record))

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True).parameters.values()
        signature = inspect.Signature([q for p in own for q in (flags if p.name == "make" else (p,))])

        def called(**given: Any) -> None:
            fields = {flag.name: given.pop(flag.name) for flag in flags}
            command(make=functools.partial(record, **fields), **given)

        functools.update_wrapper(called, command, assigned=("__module__", "__name__", "__qualname__", "__doc__"))
        vars(called).update(__signature__=signature)
        called.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
        return called

    return decorate


def _flags(record: Any) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(record, include_extras=True)
    for field in dataclasses.fields(record):
        hint = hints[field.name]
        extras = getattr(hint, "__metadata__", ())
        if any(isinstance(extra, str) for extra in extras):
            hint = Annotated[hint.__origin__, typer.Option(help=next(e for e in extras if isinstance(e, str)))]
        elif not any(isinstance(extra, OptionInfo) for extra in extras):
            continue
        yield inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hint)
