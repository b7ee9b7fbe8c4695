"""Session messages <-> records; the only module of the gateway that builds pb2 messages."""

from __future__ import annotations

from collections.abc import Iterable

from stratos.api.worker.v1 import decode_pb2
from stratos.core.requests.records import FinishReason, PositionLogprobs, RequestKey, TokenLogprob
from stratos.core.requests.sampling_params import SamplingParams
from stratos.core.requests.watermark import Watermark
from stratos.rpc.codec.fleet import ref_to_pb
from stratos.rpc.codec.trace import trace_to_pb
from stratos_gateway.sessions.records import Receipt, Submission

FINISH_REASONS: dict[int, FinishReason] = {
    decode_pb2.FINISH_REASON_STOP: FinishReason.STOP,
    decode_pb2.FINISH_REASON_LENGTH: FinishReason.LENGTH,
    decode_pb2.FINISH_REASON_ABORT: FinishReason.ABORT,
    decode_pb2.FINISH_REASON_GRAMMAR: FinishReason.GRAMMAR,
    decode_pb2.FINISH_REASON_EXHAUSTED: FinishReason.EXHAUSTED,
}


def hello(gateway_incarnation: str) -> decode_pb2.SessionRequest:
    """First message up."""
    return decode_pb2.SessionRequest(hello=decode_pb2.Hello(gateway_incarnation=gateway_incarnation))


def cancel(key: RequestKey, choices: tuple[int, ...] = ()) -> decode_pb2.SessionRequest:
    """Ends an attempt, or some of its choices."""
    return decode_pb2.SessionRequest(
        cancel=decode_pb2.Cancel(request_id=key.request_id, attempt=key.attempt, choice_indexes=choices)
    )


def submit(submission: Submission) -> decode_pb2.SessionRequest:
    """Starts an attempt."""
    message = decode_pb2.Submit(
        request_id=submission.key.request_id,
        attempt=submission.key.attempt,
        handoff_id=submission.handoff_id,
        prompt_ids=submission.prompt_ids,
        choices=[
            decode_pb2.ChoiceState(index=c.index, emitted_ids=c.emitted_ids, finished=c.finished)
            for c in submission.choices
        ],
        sampling=sampling_to_pb(submission.sampling),
        seed=submission.seed & (2**64 - 1),
        model_digest=submission.model_digest,
        adapter_digest=submission.adapter_digest,
        adapter_uri=submission.adapter_uri,
        cache_salt=submission.cache_salt,
        tenant=submission.tenant,
        priority_class=submission.priority_class,
        prefill_endpoints=[ref_to_pb(ref) for ref in submission.prefill],
        trace=trace_to_pb(submission.trace),
    )
    return decode_pb2.SessionRequest(submit=message)


def sampling_to_pb(params: SamplingParams) -> decode_pb2.SamplingParams:
    """Sampling parameters as a Submit carries them."""
    return decode_pb2.SamplingParams(
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k,
        min_p=params.min_p,
        repetition_penalty=params.repetition_penalty,
        frequency_penalty=params.frequency_penalty,
        presence_penalty=params.presence_penalty,
        logit_bias=params.logit_bias,
        max_tokens=params.max_tokens,
        min_tokens=params.min_tokens,
        ignore_eos=params.ignore_eos,
        stop_token_ids=params.stop_token_ids,
        allowed_token_ids=params.allowed_token_ids,
        bad_sequences=[decode_pb2.TokenSequence(token_ids=ids) for ids in params.bad_sequences],
        grammar=decode_pb2.Grammar(kind=params.grammar.kind, text=params.grammar.text) if params.grammar else None,
        num_logprobs=params.num_logprobs,
        num_prompt_logprobs=params.num_prompt_logprobs,
        watermark=_watermark(params.watermark) if params.watermark else None,
    )


def _watermark(watermark: Watermark) -> decode_pb2.Watermark:
    return decode_pb2.Watermark(
        key=watermark.key,
        gamma=watermark.gamma,
        delta=watermark.delta,
        num_context_tokens=watermark.num_context_tokens,
    )


def position_logprobs(entries: Iterable[decode_pb2.PositionLogprobs]) -> list[PositionLogprobs]:
    """Log probabilities of consecutive tokens."""
    return [PositionLogprobs(_logprob(p.sampled), tuple(map(_logprob, p.top))) for p in entries]


def _logprob(message: decode_pb2.TokenLogprob) -> TokenLogprob:
    return TokenLogprob(message.token_id, message.logprob, message.rank)


def receipt(message: decode_pb2.Receipt) -> Receipt:
    """A worker's receipt."""
    path = decode_pb2.PrefillPath.Name(message.prefill_path).removeprefix("PREFILL_PATH_").lower()
    return Receipt(
        num_cached_tokens=message.num_cached_tokens,
        num_transferred_tokens=message.num_transferred_tokens,
        num_recomputed_tokens=message.num_recomputed_tokens,
        prefill_path=path,
    )
