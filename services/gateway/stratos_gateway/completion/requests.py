"""Bodies of /v1/completions -> checked records; every failure is a 400 with ``param``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from stratos.common.errors import BadRequest
from stratos.core.requests.limits import check_num_choices, check_number, check_token_ids
from stratos_gateway.openai.fields import Fields, ignored_fields
from stratos_gateway.openai.requests import BestOf, GenerationBody, GenerationOptions, shared_options

DEFAULT_MAX_TOKENS = 16
"""OpenAI's default of this route; a plan that allows fewer bounds it, as it bounds a model's default."""


def parse_completion(body: dict[str, Any], vocab_size: int) -> GenerationBody:
    """Check a body.

    Raises:
        BadRequest: says which parameter is wrong, and how.
    """
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
    check_num_choices(len(prompts), options.n, "n" if options.best is None else "best_of")
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
    if isinstance(value[0], str | list):
        check_num_choices(len(value), 1)
    if all(isinstance(entry, str) for entry in value):
        return tuple(value)
    if all(isinstance(entry, list) for entry in value):
        return tuple(check_token_ids(entry, vocab_size, "prompt") for entry in value)
    return (check_token_ids(value, vocab_size, "prompt"),)
