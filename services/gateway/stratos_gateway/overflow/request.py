"""Which requests an external endpoint can serve as they are, and what it is sent: of the tenant, the texts alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stratos_gateway.openai.requests import Conversation, GenerationBody, GenerationOptions

_COMMON = frozenset({"temperature", "top_p", "presence_penalty", "frequency_penalty"})
"""Sampling parameters that every such endpoint has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalRequest:
    """A request in the form of the external API, without its model and its output limit."""

    path: str
    body: Mapping[str, Any]
    num_choices: int


def external_request(body: GenerationBody) -> ExternalRequest | None:
    """A chat, or a completion of one text; ``None`` where it asks for what others may not have."""
    if body.echo or not body.adds_special or len(body.prompts) != 1:
        return None
    prompt = body.prompts[0]
    if isinstance(prompt, Conversation) and not prompt.is_plain:
        return None
    if isinstance(prompt, Conversation):
        messages = [
            {"role": message.role, "content": message.content, **({"name": message.name} if message.name else {})}
            for message in prompt.messages
        ]
        return _external("/chat/completions", {"messages": messages}, body.options)
    return _external("/completions", {"prompt": prompt}, body.options) if isinstance(prompt, str) else None


def _external(path: str, prompt: Mapping[str, Any], options: GenerationOptions) -> ExternalRequest | None:
    special = (
        options.num_logprobs is not None, options.num_prompt_logprobs is not None, options.return_token_ids,
        options.include_stop, options.bad_words, options.bad_token_ids, options.grammar,
        options.tells_stop and options.stop, options.truncation, options.shows_special, options.continuous_usage,
        options.is_warm_up, options.hides_reasoning,
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
