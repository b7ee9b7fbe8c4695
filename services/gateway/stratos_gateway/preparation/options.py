"""Options of a request against its tenant's plan and its model: refusals, and the parameters of the samplers."""

from __future__ import annotations

from collections.abc import Sequence

from stratos.common.errors import BadRequest
from stratos.core.requests.limits import check_prompt_length, check_prompt_logprobs
from stratos.core.requests.sampling_params import SamplingParams
from stratos.core.requests.watermark import Watermark
from stratos.core.tenancy.plan import Plan
from stratos.core.tenant import Tenant
from stratos.text.tokenizer import Tokenizer
from stratos_gateway.models.grammar_check import GrammarCheck
from stratos_gateway.models.served_model import ServedModel
from stratos_gateway.openai.requests import GenerationOptions


async def check_request(
    options: GenerationOptions,
    prompts: Sequence[Sequence[int]],
    tenant: Tenant,
    grammars: GrammarCheck,
    prompt_param: str,
) -> None:
    """Refuse a request that may not run as it is.

    Raises:
        ContextLengthExceeded: a prompt is too long.
        BadRequest: too many choices, output tokens or log probabilities, or a grammar that cannot be used.
    """
    plan = tenant.plan
    for prompt in prompts:
        check_prompt_length(len(prompt), plan.max_prompt_tokens, len(prompt) + 1, prompt_param)
    if options.n > plan.max_n:
        param = "n" if options.best is None else "best_of"
        raise BadRequest(f"{param} must be at most {plan.max_n} with this plan", param=param)
    if plan.max_tokens is not None and (options.max_tokens or 0) > plan.max_tokens:
        raise BadRequest(f"max_tokens must be at most {plan.max_tokens} with this plan", param="max_tokens")
    param = "prompt_logprobs" if options.num_echo_logprobs is None else "logprobs"
    check_prompt_logprobs(sum(map(len, prompts)), num_prompt_logprobs(options), param)
    if options.grammar is not None:
        await grammars.check(options.grammar.spec, options.grammar.param, tenant.name)


def sampling_params(
    options: GenerationOptions, num_prompt_tokens: int, plan: Plan, model: ServedModel, watermark: Watermark | None
) -> SamplingParams:
    """Parameters of the samplers; ``options.max_tokens`` is given.

    Raises:
        BadRequest: fewer tokens are left than the request wants at least.
    """
    assert options.max_tokens is not None, "a default stands where the client names none"
    wanted = options.max_tokens
    max_tokens = min(wanted, plan.max_tokens or wanted, model.max_tokens_left(num_prompt_tokens))
    if options.sampling.get("min_tokens", 0) > max_tokens:
        text = f"min_tokens must not be above the {max_tokens} tokens this request may generate"
        raise BadRequest(text, param="min_tokens")
    return SamplingParams(
        max_tokens=max_tokens,
        num_logprobs=options.num_logprobs,
        num_prompt_logprobs=num_prompt_logprobs(options),
        bad_sequences=_bad_sequences(options, model.tokenizer),
        grammar=None if options.grammar is None else options.grammar.spec,
        watermark=watermark,
        **options.sampling,
    )


def num_prompt_logprobs(options: GenerationOptions) -> int | None:
    """Most likely tokens at each place of the prompt that some part of the answer needs."""
    wanted = [num for num in (options.num_prompt_logprobs, options.num_echo_logprobs) if num is not None]
    return max(wanted, default=None)


def _bad_sequences(options: GenerationOptions, tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """Bad tokens, and the spellings of bad words: at the beginning of a text and after a blank."""
    encode = tokenizer.encode_plain
    words = [tuple(encode(blank + word.strip())) for word in options.bad_words for blank in ("", " ")]
    return tuple(dict.fromkeys([*((token,) for token in options.bad_token_ids), *words]))
