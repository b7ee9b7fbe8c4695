"""Options of a request against its tenant's plan and its model: refusals, and the parameters of the samplers."""

from __future__ import annotations

from collections.abc import Sequence

from stratos.common.errors import BadRequest
from stratos.core.requests.limits import check_prompt_length, check_prompt_logprobs
from stratos.core.requests.records import FinishReason
from stratos.core.requests.sampling_params import SamplingParams
from stratos.core.requests.watermark import Watermark
from stratos.core.tenancy.plan import Plan
from stratos.text.tokenizer import Tokenizer
from stratos_gateway.models.served_model import ServedModel
from stratos_gateway.openai.requests import GenerationOptions

_FREE_ENDS = frozenset({FinishReason.EXHAUSTED})
_BOUNDED_ENDS = frozenset({FinishReason.EXHAUSTED, FinishReason.LENGTH})


def check_request(
    options: GenerationOptions, prompts: Sequence[Sequence[int]], plan: Plan, prompt_param: str, num_prior: int = 0
) -> None:
    """Refuse a request that may not run as it is; its grammar is looked at elsewhere.

    Args:
        options: of the request.
        prompts: encoded.
        plan: of its tenant.
        prompt_param: the route's name for its prompt.
        num_prior: tokens of an earlier answer that it goes on from, of the longest choice.

    Raises:
        ContextLengthExceeded: a prompt is too long.
        BadRequest: too many choices, output tokens or log probabilities.
    """
    for prompt in prompts:
        check_prompt_length(len(prompt), plan.max_prompt_tokens, len(prompt) + 1, prompt_param)
    if options.n > plan.max_n:
        param = "n" if options.best is None else "best_of"
        raise BadRequest(f"{param} must be at most {plan.max_n} with this plan", param=param)
    if plan.max_tokens is not None and (options.max_tokens or 0) > num_prior + plan.max_tokens:
        most = num_prior + plan.max_tokens
        raise BadRequest(f"max_tokens must be at most {most} with this plan", param="max_tokens")
    if (num_logprobs := num_prompt_logprobs(options)) is not None:
        param = "prompt_logprobs" if options.num_echo_logprobs is None else "logprobs"
        check_prompt_logprobs(sum(map(len, prompts)), num_logprobs, param)


def sampling_params(
    options: GenerationOptions,
    num_prompt_tokens: int,
    plan: Plan,
    model: ServedModel,
    watermark: Watermark | None,
    num_prior: int = 0,
) -> SamplingParams:
    """Parameters of the samplers; ``options.max_tokens`` is given.

    Args:
        options: of the request.
        num_prompt_tokens: of one prompt.
        plan: of its tenant.
        model: that answers.
        watermark: of the output.
        num_prior: tokens of an earlier answer that this one goes on from, of the longest choice.

    Raises:
        BadRequest: fewer tokens are left than the request wants at least.
    """
    wanted = _num_wanted(options, num_prompt_tokens, model)
    max_tokens = wanted if plan.max_tokens is None else min(wanted, num_prior + plan.max_tokens)
    if max_tokens <= num_prior and num_prior:
        text = f"max_tokens leaves nothing behind the {num_prior} tokens that the answer has"
        raise BadRequest(text, param="max_tokens")
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


def _num_wanted(options: GenerationOptions, num_prompt_tokens: int, model: ServedModel) -> int:
    """Most tokens that are asked for, and that the context has room for."""
    assert options.max_tokens is not None, "a default stands where the client names none"
    return min(options.max_tokens, model.max_tokens_left(num_prompt_tokens))


def open_ends(
    options: GenerationOptions, num_prompt_tokens: int, model: ServedModel, sampling: SamplingParams
) -> frozenset[FinishReason]:
    """Ends of a choice behind which more was asked for: no room for its KV, or the most that the plan allows."""
    is_bounded = sampling.max_tokens < _num_wanted(options, num_prompt_tokens, model)
    return _BOUNDED_ENDS if is_bounded else _FREE_ENDS


def num_prompt_logprobs(options: GenerationOptions) -> int | None:
    """Most likely tokens at each place of the prompt that some part of the answer needs."""
    asked, echoed = options.num_prompt_logprobs, options.num_echo_logprobs
    if asked is None or echoed is None:
        return echoed if asked is None else asked
    return max(asked, echoed)


def _bad_sequences(options: GenerationOptions, tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """Bad tokens, and the spellings of bad words: at the beginning of a text and after a blank."""
    if not (options.bad_words or options.bad_token_ids):
        return ()
    encode = tokenizer.encode_plain
    words = [tuple(encode(blank + word.strip())) for word in options.bad_words for blank in ("", " ")]
    return tuple(dict.fromkeys([*((token,) for token in options.bad_token_ids), *words]))
