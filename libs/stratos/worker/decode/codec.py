"""Edge of a decode worker: Submit and outputs as frozen records, with every check of what comes in.

Only ``decode_servicer`` calls these functions; their callers see no protobuf type.
"""

from __future__ import annotations

from stratos.api.worker.v1 import decode_pb2, embed_pb2
from stratos.common.errors import BadRequest, ContextLengthExceeded, IdentityMismatch, QueueTimeout
from stratos.core.adapter import AdapterRef
from stratos.core.requests import limits
from stratos.core.requests.grammar import check_grammar
from stratos.core.requests.records import (
    ChoiceOutput,
    ChoiceState,
    EngineRequest,
    FinishReason,
    PositionLogprobs,
    RequestKey,
    TokenLogprob,
)
from stratos.core.requests.sampling_params import SamplingParams
from stratos.core.requests.terms import RequestTerms
from stratos.core.requests.watermark import Watermark, check_watermark
from stratos.engine.contract.runner import RunnerInfo
from stratos.rpc.codec.fleet import ref_from_pb
from stratos.rpc.codec.trace import trace_from_pb
from stratos.rpc.errors import to_error_detail
from stratos.worker.records import Receipt, RequestDelta, Submission

MAX_ID_CHARS = 200
MAX_SALT_BYTES = 64
MAX_PREFILL_ENDPOINTS = 2

_FINISH_REASONS = {
    FinishReason.STOP: decode_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: decode_pb2.FINISH_REASON_LENGTH,
    FinishReason.ABORT: decode_pb2.FINISH_REASON_ABORT,
    FinishReason.GRAMMAR: decode_pb2.FINISH_REASON_GRAMMAR,
    FinishReason.EXHAUSTED: decode_pb2.FINISH_REASON_EXHAUSTED,
}


def check_id(value: str, param: str) -> str:
    """Refuse an identifier that is empty, too long or not printable ASCII."""
    if not value or len(value) > MAX_ID_CHARS or not (value.isascii() and value.isprintable()):
        raise BadRequest(f"{param} must be 1 to {MAX_ID_CHARS} printable ASCII characters", param=param)
    return value


def check_terms(message: decode_pb2.Submit | embed_pb2.EmbedRequest, now_s: float) -> RequestTerms:
    """The terms of a request that arrives at ``now_s``.

    Raises:
        BadRequest: salt or class is out of range.
        QueueTimeout: the deadline has passed already.
    """
    if len(message.cache_salt) > MAX_SALT_BYTES:
        raise BadRequest(f"cache_salt may have at most {MAX_SALT_BYTES} bytes", param="cache_salt")
    if message.priority_class >= limits.NUM_PRIORITY_CLASSES:
        raise BadRequest(f"priority_class must be below {limits.NUM_PRIORITY_CLASSES}", param="priority_class")
    if message.HasField("deadline_ms") and message.deadline_ms <= 0:
        raise QueueTimeout("the request's deadline passed before it reached the worker")
    return RequestTerms(
        tenant=message.tenant[:MAX_ID_CHARS],
        cache_salt=message.cache_salt,
        priority_class=message.priority_class,
        adapter=AdapterRef(digest=message.adapter_digest, uri=message.adapter_uri),
        arrival_s=now_s,
        deadline_s=now_s + message.deadline_ms / 1000 if message.HasField("deadline_ms") else None,
    )


def submission_from_pb(submit: decode_pb2.Submit, info: RunnerInfo, now_s: float) -> Submission:
    """Check a Submit completely and turn it into what the worker runs.

    Args:
        submit: the message.
        info: facts of the model this worker runs.
        now_s: monotonic seconds of this process; deadlines become absolute with it.

    Raises:
        BadRequest, ContextLengthExceeded: a field is malformed or out of range; ``param`` names it.
        IdentityMismatch: another base model is meant.
        QueueTimeout: the deadline has passed already.
    """
    if submit.model_digest != info.identity.model_digest:
        raise IdentityMismatch("this worker serves another base model; ask the router for a new placement")
    key = RequestKey(check_id(submit.request_id, "request_id"), submit.attempt)
    prompt_ids = limits.check_token_ids(submit.prompt_ids, info.vocab_size, "prompt_ids")
    limits.check_prompt_length(len(prompt_ids), info.max_model_len, info.max_model_len, "prompt_ids")
    sampling = sampling_from_pb(submit.sampling, info.vocab_size)
    limits.check_prompt_logprobs(len(prompt_ids), sampling.num_prompt_logprobs, "num_prompt_logprobs")
    terms = check_terms(submit, now_s)
    return Submission(
        request=EngineRequest(
            key=key,
            prompt_ids=prompt_ids,
            choices=_choices_from_pb(submit, sampling, info),
            sampling=sampling,
            seed=submit.seed,
            terms=terms,
        ),
        handoff_id=submit.handoff_id,
        prefill_endpoints=tuple(ref_from_pb(ref) for ref in submit.prefill_endpoints[:MAX_PREFILL_ENDPOINTS]),
        trace=trace_from_pb(submit.trace),
    )


def _choices_from_pb(submit: decode_pb2.Submit, sampling: SamplingParams, info: RunnerInfo) -> tuple[ChoiceState, ...]:
    limits.check_number("n", len(submit.choices), "choices")
    if len({choice.index for choice in submit.choices}) != len(submit.choices):
        raise BadRequest("choices must have different indexes", param="choices")
    if all(choice.finished for choice in submit.choices):
        raise BadRequest("every choice is finished: there is nothing to do", param="choices")
    checked = []
    for choice in submit.choices:
        limits.check_number("n", choice.index + 1, "choices")
        emitted = limits.check_token_ids(choice.emitted_ids, info.vocab_size, "choices")
        if not choice.finished and len(emitted) >= sampling.max_tokens:
            raise BadRequest("an unfinished choice has emitted max_tokens tokens already", param="choices")
        if not choice.finished and len(submit.prompt_ids) + len(emitted) >= info.max_model_len:
            raise ContextLengthExceeded("prompt and emitted tokens fill the model's context", param="choices")
        checked.append(ChoiceState(index=choice.index, emitted_ids=emitted, finished=choice.finished))
    return tuple(checked)


def sampling_from_pb(sampling: decode_pb2.SamplingParams, vocab_size: int) -> SamplingParams:
    """Check sampling parameters against the limits table.

    Raises:
        BadRequest: a value is out of range; ``param`` names it.
    """

    def number(name: str) -> float:
        return float(limits.check_number(name, getattr(sampling, name)))

    min_tokens, max_tokens = int(number("min_tokens")), int(number("max_tokens"))
    if min_tokens > max_tokens:
        raise BadRequest("min_tokens must not be above max_tokens", param="min_tokens")
    return SamplingParams(
        temperature=number("temperature"),
        top_p=number("top_p"),
        top_k=int(number("top_k")),
        min_p=number("min_p"),
        repetition_penalty=number("repetition_penalty"),
        frequency_penalty=number("frequency_penalty"),
        presence_penalty=number("presence_penalty"),
        logit_bias=limits.check_logit_bias(dict(sampling.logit_bias), vocab_size),
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        ignore_eos=sampling.ignore_eos,
        stop_token_ids=limits.check_stop_token_ids(list(sampling.stop_token_ids), vocab_size),
        allowed_token_ids=limits.check_token_id_list(
            list(sampling.allowed_token_ids) or None, vocab_size, "allowed_token_ids", limits.MAX_ALLOWED_TOKEN_IDS
        ),
        bad_sequences=limits.check_bad_sequences([tuple(s.token_ids) for s in sampling.bad_sequences], vocab_size),
        grammar=check_grammar(sampling.grammar.kind, sampling.grammar.text, "grammar")
        if sampling.HasField("grammar")
        else None,
        num_logprobs=int(number("num_logprobs")) if sampling.HasField("num_logprobs") else None,
        watermark=_watermark_from_pb(sampling.watermark) if sampling.HasField("watermark") else None,
        num_prompt_logprobs=int(number("num_prompt_logprobs")) if sampling.HasField("num_prompt_logprobs") else None,
    )


def _watermark_from_pb(message: decode_pb2.Watermark) -> Watermark:
    return check_watermark(
        Watermark(
            key=message.key,
            gamma=message.gamma,
            delta=message.delta,
            num_context_tokens=message.num_context_tokens,
        )
    )


def output_to_pb(delta: RequestDelta) -> decode_pb2.RequestOutput:
    """Record to message."""
    output = decode_pb2.RequestOutput(
        request_id=delta.key.request_id,
        attempt=delta.key.attempt,
        deltas=[_choice_to_pb(choice) for choice in delta.choices],
    )
    if delta.error is not None:
        output.error.CopyFrom(to_error_detail(delta.error))
    if delta.prompt_logprobs:
        output.prompt_logprobs.extend(_position_to_pb(position) for position in delta.prompt_logprobs)
    if delta.receipt is not None:
        output.receipt.CopyFrom(_receipt_to_pb(delta.receipt))
    return output


def _choice_to_pb(choice: ChoiceOutput) -> decode_pb2.ChoiceDelta:
    delta = decode_pb2.ChoiceDelta(
        index=choice.index,
        offset=choice.offset,
        token_ids=choice.token_ids,
        logprobs=[_position_to_pb(position) for position in choice.logprobs],
    )
    if choice.finish_reason is not None:
        delta.finish_reason = _FINISH_REASONS[choice.finish_reason]
    return delta


def _position_to_pb(position: PositionLogprobs) -> decode_pb2.PositionLogprobs:
    return decode_pb2.PositionLogprobs(
        sampled=_logprob_to_pb(position.sampled), top=[_logprob_to_pb(entry) for entry in position.top]
    )


def _logprob_to_pb(entry: TokenLogprob) -> decode_pb2.TokenLogprob:
    return decode_pb2.TokenLogprob(token_id=entry.token_id, logprob=entry.logprob, rank=entry.rank)


def _receipt_to_pb(receipt: Receipt) -> decode_pb2.Receipt:
    return decode_pb2.Receipt(
        num_prompt_tokens=receipt.num_prompt_tokens,
        num_cached_tokens=receipt.num_cached_tokens,
        num_transferred_tokens=receipt.num_transferred_tokens,
        num_recomputed_tokens=receipt.num_recomputed_tokens,
        prefill_path=f"PREFILL_PATH_{receipt.prefill_path.name}",
        prefill_worker_id=receipt.prefill_worker_id,
        queue_ns=receipt.queue_ns,
        prefill_ns=receipt.prefill_ns,
        transfer_ns=receipt.transfer_ns,
        numerics_id=receipt.numerics_id,
    )
