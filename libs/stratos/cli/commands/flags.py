"""Flags of a command that are fields of a record: each is declared once, with its help and its default.

A field is a flag if its annotation carries a ``typer.Option``; other fields are for the command to fill in.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any, get_type_hints

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
        if any(isinstance(extra, OptionInfo) for extra in getattr(hints[field.name], "__metadata__", ())):
            yield inspect.Parameter(
                field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name]
            )
