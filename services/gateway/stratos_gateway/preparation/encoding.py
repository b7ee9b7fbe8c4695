"""Prompts of a request as token ids, cut to a length where the request says so."""

from __future__ import annotations

from dataclasses import replace

from stratos.core.tenancy.plan import Plan
from stratos_gateway.models.score_head import Pair
from stratos_gateway.models.served_model import ServedModel
from stratos_gateway.openai.requests import Conversation, GenerationBody, Prompt
from stratos_gateway.preparation.output_shape import encode_conversation


async def encode_prompts(
    model: ServedModel, body: GenerationBody, plan: Plan, default_max_tokens: int = 1
) -> tuple[GenerationBody, list[tuple[int, ...]]]:
    """Ids of each prompt, and the body with what is left of its texts: an echo shows what the model was given.

    ``default_max_tokens`` are left room for where the request names no ``max_tokens``.

    Raises:
        BadRequest: a prompt is empty or too long, or is to be cut to more than the model takes.
    """
    truncation = body.options.truncation
    if truncation is None:
        found: list[tuple[int, ...]] = []
        for prompt in body.prompts:  # a comprehension that waits is a coroutine of its own
            if isinstance(prompt, tuple):  # which need not be waited for
                found.append(model.checked(prompt))
            else:
                found.append(await _encode(model, body, prompt))
        return body, found
    room = model.base.max_model_len - 1
    if truncation.num_tokens is None:
        room = model.base.max_model_len - (body.options.max_tokens or default_max_tokens)
    most = max(1, min(plan.max_prompt_tokens, model.max_input_tokens, room))
    unbounded = model.unbounded()
    cut = [truncation.cut(await _encode(unbounded, body, prompt), most) for prompt in body.prompts]
    left = (
        prompt if isinstance(prompt, Conversation | Pair) else ids
        for prompt, ids in zip(body.prompts, cut, strict=True)
    )
    return replace(body, prompts=tuple(left)), cut


async def _encode(model: ServedModel, body: GenerationBody, prompt: Prompt) -> tuple[int, ...]:
    if isinstance(prompt, Conversation):
        return await encode_conversation(model, prompt)
    if isinstance(prompt, Pair):
        return await model.encode_pair(prompt)
    return await model.encode_prompt(prompt, adds_special=body.adds_special)
