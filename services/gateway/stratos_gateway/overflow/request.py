"""Which requests an external endpoint can serve as they are, and what it is sent: of the tenant, the texts alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stratos_gateway.openai.requests import ChatRequest, CompletionRequest, GenerationOptions

_COMMON = frozenset({"temperature", "top_p", "presence_penalty", "frequency_penalty"})
"""Sampling parameters that every such endpoint has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalRequest:
    """A request in the form of the external API, without its model and its output limit."""

    path: str
    body: Mapping[str, Any]
    num_choices: int


def external_chat(request: ChatRequest) -> ExternalRequest | None:
    """A chat; ``None`` where it asks for what others may not have."""
    messages = [{"role": message.role, "content": message.content} for message in request.messages]
    return _external("/chat/completions", {"messages": messages}, request.options)


def external_completion(request: CompletionRequest) -> ExternalRequest | None:
    """A completion of one text; ``None`` where it is something else, or asks for what others may not have."""
    if request.echo or len(request.prompts) != 1 or not isinstance(request.prompts[0], str):
        return None
    return _external("/completions", {"prompt": request.prompts[0]}, request.options)


def _external(path: str, prompt: Mapping[str, Any], options: GenerationOptions) -> ExternalRequest | None:
    special = (
        options.num_logprobs is not None, options.num_prompt_logprobs is not None, options.return_token_ids,
        options.include_stop, options.bad_words, options.bad_token_ids, options.grammar,
        *(value for name, value in options.sampling.items() if name not in _COMMON),
    )  # fmt: skip
    if any(special):
        return None
    body = {**prompt, **{name: value for name, value in options.sampling.items() if name in _COMMON}}
    if options.stop:
        body["stop"] = list(options.stop)
    if options.seed is not None:
        body["seed"] = options.seed
    return ExternalRequest(path=path, body={**body, "n": options.n}, num_choices=options.n)
