"""Bodies of /v1/completions -> checked records; every failure is a 400 with ``param``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from stratos.common.changed import changed
from stratos.common.errors import BadRequest
from stratos.core.requests.limits import check_num_choices, check_number, check_token_ids
from stratos_gateway.openai.fields import Fields, PlainFields, asked_beside, ignored_fields
from stratos_gateway.openai.requests import BestOf, GenerationBody, GenerationOptions, shared_options

DEFAULT_MAX_TOKENS = 16
"""OpenAI's default of this route; a plan that allows fewer bounds it, as it bounds a model's default."""


def parse_completion(body: dict[str, Any], vocab_size: int) -> GenerationBody:
    """Check a body; what many ask for beside their prompt is read once.

    Raises:
        BadRequest: says which parameter is wrong, and how.
    """
    asked = asked_beside(body, "prompt")
    shared = None if asked is None else _read_beside(asked, vocab_size)
    if shared is None:
        return _parsed(body, vocab_size)
    prompts = _prompts(body.get("prompt"), vocab_size)
    _check_num_choices(prompts, shared.options)
    return changed(shared, prompts=prompts)


@lru_cache(maxsize=1024)
def _read_beside(asked: PlainFields, vocab_size: int) -> GenerationBody | None:
    """A body without its prompt; ``None`` where it is refused, which the whole body tells in its order."""
    try:
        return _parsed({"prompt": "", **{name: value for name, _, value in asked}}, vocab_size)
    except BadRequest:
        return None


def _check_num_choices(prompts: Sequence[object], options: GenerationOptions) -> None:
    check_num_choices(len(prompts), options.n, "n" if options.best is None else "best_of")


def _parsed(body: dict[str, Any], vocab_size: int) -> GenerationBody:
    fields = Fields(body)
    for name in ("prompt_embeds", "suffix"):
        fields.refuse(name, "")
    prompts = _prompts(fields.take("prompt"), vocab_size)
    echo, (most, most_field) = fields.flag("echo"), _take_most(fields)
    adds_special = fields.flag("add_special_tokens", default=True)
    echoes_alone = echo and type(most) is int and most == 0
    keeping = fields.take_keeping()
    num_logprobs, best_of = fields.number("logprobs", "num_logprobs"), fields.number("best_of", "n")
    options = shared_options(
        fields,
        vocab_size,
        max_tokens=None if most is None else check_number("max_tokens", 1 if echoes_alone else most, most_field),
        num_logprobs=num_logprobs,
    )
    if echo and options.num_logprobs is not None:
        options = replace(options, num_echo_logprobs=options.num_logprobs)
    if best_of is not None and best_of != options.n:
        options = _best_of(options, int(best_of))
    _check_num_choices(prompts, options)
    return GenerationBody(
        options=options,
        prompts=prompts,
        echo=echo,
        adds_special=adds_special,
        echoes_alone=echoes_alone,
        ignored=ignored_fields(body),
        keeps_s=keeping.ttl_s,
        keep_fields=keeping.fields,
    )


def _take_most(fields: Fields) -> tuple[Any, str]:
    """Most tokens, and the field that says so: load generators send both names on every route."""
    older, newer = fields.take("max_tokens"), fields.take("max_completion_tokens")
    return (older, "max_tokens") if newer is None else (newer, "max_completion_tokens")


def _best_of(options: GenerationOptions, num: int) -> GenerationOptions:
    """Options with ``num`` choices, of which the best are shown; which they are is known at the end alone."""
    if num < options.n:
        raise BadRequest("best_of must not be below n", param="best_of")
    if options.stream:
        raise BadRequest("best_of above n cannot be streamed", param="best_of")
    best = BestOf(num_shown=options.n, tells_logprobs=options.num_logprobs is not None)
    return replace(options, n=num, best=best, num_logprobs=options.num_logprobs or 0)


def _prompts(value: Any, vocab_size: int) -> tuple[str | tuple[int, ...], ...]:
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list) or not value:
        raise BadRequest("prompt must be a string, a list of strings, token ids or lists of token ids", param="prompt")
    if type(value[0]) is int:
        return (check_token_ids(value, vocab_size, "prompt"),)
    if isinstance(value[0], str | list):
        check_num_choices(len(value), 1)
    if all(isinstance(entry, str) for entry in value):
        return tuple(value)
    if all(isinstance(entry, list) for entry in value):
        return tuple(check_token_ids(entry, vocab_size, "prompt") for entry in value)
    return (check_token_ids(value, vocab_size, "prompt"),)
