"""Texts of a request's input, as content policies read them and answers echo them."""

from __future__ import annotations

from stratos.core.tenant import Tenant
from stratos.text.tokenizer import Tokenizer
from stratos_gateway.models.score_head import Pair
from stratos_gateway.openai.requests import Conversation, GenerationBody


def texts_at_hand(body: GenerationBody, tenant: Tenant) -> tuple[str, ...] | None:
    """Texts of the input that take no work: plain prompts, and none of token ids that no one reads; else ``None``."""
    found: list[str] = []
    for prompt in body.prompts:
        if isinstance(prompt, str):
            found.append(prompt)
        elif not isinstance(prompt, tuple) or body.echo or tenant.plan.content_policy:
            return None
    return tuple(found)


def texts_of(body: GenerationBody, tenant: Tenant, tokenizer: Tokenizer) -> tuple[str, ...]:
    """Texts of the input; token ids are decoded where they are echoed, or a content policy reads them."""
    texts: list[str] = []
    for prompt in body.prompts:
        if isinstance(prompt, Conversation | Pair):
            texts += prompt.texts
        elif isinstance(prompt, str):
            texts.append(prompt)
        elif body.echo or tenant.plan.content_policy:
            texts.append(tokenizer.decode(prompt, skip_special=False))
    return tuple(texts)
