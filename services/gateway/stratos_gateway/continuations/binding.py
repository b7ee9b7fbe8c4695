"""Which request a continuation token is of: all that its tokens and texts depend on, as one hash."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

import orjson

from stratos.common.continuation_errors import ContinuationMismatch, ContinuationStale
from stratos.common.errors import BadRequest
from stratos.core.requests.continuation import ContinuationState
from stratos.core.tenant import Tenant
from stratos.text.output.parser import OutputShape
from stratos_gateway.answering.spec import GenerationSpec
from stratos_gateway.continuations.tokens import PARAM, ContinuationTokens
from stratos_gateway.models.catalogue import ModelTarget
from stratos_gateway.openai.requests import GenerationBody, GenerationOptions


def can_go_on(
    tokens: ContinuationTokens | None, tenant: Tenant, body: GenerationBody, shape: OutputShape | None
) -> bool:
    """Whether another answer may go on behind the one to this request: tokens alone have to say where it stands, and
    a call of a tool that is cut is none that another answer could end."""
    options, is_plain = body.options, shape is None or (shape.syntax is None and shape.frame is None)
    told = options.num_logprobs, options.num_prompt_logprobs, options.num_echo_logprobs
    return (
        tokens is not None
        and is_plain
        and not (tenant.plan.content_policy or body.echoes_alone)
        and options.best is None
        and told == (None, None, None)
        and tokens.can_be_made(tenant.id)
    )


def opening_of(tokens: ContinuationTokens | None, tenant: Tenant, text: str) -> Callable[[], ContinuationState]:
    """Opens the answer that a request goes on from, in any thread.

    Raises:
        InvalidContinuation: when it is called: the text is no token of the tenant, or was altered.
        BadRequest: this gateway has no tokens.
    """
    if tokens is None:
        raise BadRequest(f"{PARAM} is not supported by this server", param=PARAM, code="unsupported_parameter")
    return tokens.opening_of(tenant.id, text)


def check_target(state: ContinuationState, target: ModelTarget) -> None:
    """Refuse to go on with other weights than those that the answer has.

    Raises:
        ContinuationStale: the adapter is another one by now, that revision of the model is served no more, or the
            request pins another one.
    """
    if (state.model_digest, state.adapter_digest) != (target.model_digest, target.adapter.digest):
        raise ContinuationStale(f"the model or the adapter of this {PARAM} is another one by now", param=PARAM)


def check_choices(state: ContinuationState, num_prompts: int, num_choices: int) -> None:
    """Refuse a request of another form than the one that the token is of; raises ``ContinuationMismatch``."""
    if [len(choices) for choices in state.choices] != [num_choices] * num_prompts:
        raise other_request()


def other_request() -> ContinuationMismatch:
    """Refusal of a request that is not the one that its token is of."""
    text = f"this {PARAM} is of another request: send the one that was cut again, with the token"
    return ContinuationMismatch(text, param=PARAM)


def request_binding(route: str, options: GenerationOptions, specs: Sequence[GenerationSpec]) -> str:
    """Hash of a request; how much of it may be generated is no part of it, and neither is a stream.

    Args:
        route: of its dialect.
        options: of its body.
        specs: one per prompt.
    """
    parts = [
        [spec.prompt_ids, _canonical(spec.sampling), spec.continues_prompt, sorted(spec.shown_ids)] for spec in specs
    ]
    content = orjson.dumps([route, parts, options.n, options.stop, options.include_stop])
    return hashlib.sha256(content).hexdigest()[:32]


_UNBOUND = ("max_tokens", "drafts_off")
"""Fields on which no token depends."""


def _canonical(value: Any) -> Any:
    """A value as JSON: of a record the fields that differ from their defaults, by name, so that a field which a later
    version adds changes nothing."""
    if is_dataclass(value):
        told = {f.name: getattr(value, f.name) for f in fields(value) if f.name not in _UNBOUND}
        given = {name: part for name, part in told.items() if part != _default(value, name)}
        return [[name, _canonical(given[name])] for name in sorted(given)]
    if isinstance(value, Mapping):
        return [[key, value[key]] for key in sorted(value)]
    return value.hex() if isinstance(value, bytes) else value


def _default(value: Any, name: str) -> Any:
    field = type(value).__dataclass_fields__[name]
    return field.default if field.default_factory is MISSING else field.default_factory()
