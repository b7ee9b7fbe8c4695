"""Session messages <-> records, both ways: a generation's attempt up, its tokens down.

Malformed enums are refused here; ranges are the receiver's to check.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import zip_longest

from stratos.api.worker.v1 import decode_pb2
from stratos.common.errors import Internal
from stratos.core.features import PROTOCOL_VERSION, Feature
from stratos.core.generation import ChoiceDelta, DraftUse, PrefillPath, Receipt, RequestDelta, Submission
from stratos.core.placement import WorkerRef
from stratos.core.requests.grammar import check_grammar
from stratos.core.requests.records import (
    NO_CHOICES,
    ChoiceState,
    EngineRequest,
    FinishReason,
    PositionLogprobs,
    RequestKey,
    TokenLogprob,
)
from stratos.core.requests.sampling_params import SamplingParams
from stratos.core.requests.watermark import Watermark
from stratos.rpc.codec.fields import EnumCodec, FlatField, Part, nested, optional
from stratos.rpc.codec.flat import FlatCodec
from stratos.rpc.codec.fleet import REF
from stratos.rpc.codec.terms import terms_from_pb, terms_to_part
from stratos.rpc.codec.trace import trace_from_pb, trace_to_part
from stratos.rpc.codec.unknown_fields import refuse_unknown_fields
from stratos.rpc.codec.usage import CACHE_WRITES, METER_TAG
from stratos.rpc.errors import from_error_detail, to_error_detail

FINISH_REASONS: dict[FinishReason, decode_pb2.FinishReason] = {
    FinishReason.STOP: decode_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: decode_pb2.FINISH_REASON_LENGTH,
    FinishReason.ABORT: decode_pb2.FINISH_REASON_ABORT,
    FinishReason.GRAMMAR: decode_pb2.FINISH_REASON_GRAMMAR,
    FinishReason.EXHAUSTED: decode_pb2.FINISH_REASON_EXHAUSTED,
}
_REASONS_BY_NUMBER: dict[int, FinishReason] = {number: reason for reason, number in FINISH_REASONS.items()}
_PATHS = {path: decode_pb2.PrefillPath.Value(f"PREFILL_PATH_{path.name}") for path in PrefillPath}
_SEED_MASK = 2**64 - 1
INLINE_PLACES = 128
"""Places with log probabilities that are put into messages, or read from them, on an event loop; up to 40 us each."""

_WATERMARK = FlatCodec(Watermark, decode_pb2.Watermark)
SAMPLING = FlatCodec(
    SamplingParams,
    decode_pb2.SamplingParams,
    fields={
        "bad_sequences": FlatField(
            encode=lambda sequences: [decode_pb2.TokenSequence(token_ids=ids) for ids in sequences],
            decode=lambda sequences: tuple(tuple(sequence.token_ids) for sequence in sequences),
        ),
        "grammar": FlatField(
            encode=lambda grammar: decode_pb2.Grammar(kind=grammar.kind, text=grammar.text) if grammar else None,
            decode=lambda grammar: check_grammar(grammar.kind, grammar.text, "grammar"),
            is_optional=True,
        ),
        "watermark": optional(_WATERMARK),
    },
)
_ONCE = ("receipt", "error", "drafts")
"""Fields of a message with news that hardly any has."""
_DRAFTS = FlatCodec(DraftUse, decode_pb2.DraftUse)
_RECEIPT = FlatCodec(
    Receipt,
    decode_pb2.Receipt,
    fields={
        "prefill_path": EnumCodec(_PATHS, default=PrefillPath.UNSPECIFIED).field,
        "writes": nested(CACHE_WRITES),
    },
)


# -- up ----------------------------------------------------------------------------------------------


def hello(*, takes_columns: bool = False) -> decode_pb2.SessionRequest:
    """First message up: what this build speaks and knows, and whether it reads single tokens from columns."""
    message = decode_pb2.Hello(
        protocol_version=PROTOCOL_VERSION, features=sorted(Feature), takes_token_columns=takes_columns
    )
    return decode_pb2.SessionRequest(hello=message)


def welcome_to_pb(worker: WorkerRef, features: frozenset[str]) -> decode_pb2.Welcome:
    """First message down: who answers, and what it offers."""
    return decode_pb2.Welcome(
        worker=REF.to_pb(worker), protocol_version=PROTOCOL_VERSION, features=sorted(features), takes_further=True
    )


def messages_of(message: decode_pb2.SessionRequest) -> Iterator[decode_pb2.SessionRequest]:
    """A message up, and those behind it."""
    yield message
    yield from message.further


def cancel(key: RequestKey, choices: Mapping[int, int] = NO_CHOICES) -> Part:
    """Ends an attempt, or some of its choices, each with its number of tokens: fields of a ``SessionRequest``."""
    numbers = {"choice_indexes": tuple(choices), "num_tokens": tuple(choices.values())}
    return {"cancel": {"request_id": key.request_id, "attempt": key.attempt, **numbers}}


def cancelled_choices(message: decode_pb2.Cancel) -> dict[int, int | None]:
    """Choices that a message ends, each with its number of tokens, where its gateway says that."""
    return dict(zip_longest(message.choice_indexes, message.num_tokens[: len(message.choice_indexes)]))


def take_over(key: RequestKey, num_received: Mapping[int, int]) -> Part:
    """Goes on, as a new attempt, with what an older one of the request runs there."""
    attach = {"request_id": key.request_id, "attempt": key.attempt, "num_received": num_received, "takes_over": True}
    return {"attach": attach}


def submit_to_part(submission: Submission, now_s: float) -> Part:
    """An attempt as fields of its message, which leaves at ``now_s``."""
    request = submission.request
    return {
        "request_id": request.key.request_id,
        "attempt": request.key.attempt,
        "handoff_id": submission.handoff_id,
        "prompt_ids": request.prompt_ids,
        "choices": [{"index": c.index, "emitted_ids": c.emitted_ids, "finished": c.finished} for c in request.choices],
        "sampling": SAMPLING.to_part(request.sampling),
        "seed": request.seed & _SEED_MASK,
        "model_digest": submission.model_digest,
        "terms": terms_to_part(request.terms, now_s),
        "prefill": [REF.to_part(ref) for ref in submission.prefill],
        "trace": trace_to_part(submission.trace),
        "required_features": sorted(submission.required_features),
        "meter": None if submission.meter is None else METER_TAG.to_part(submission.meter),
        "num_prior_tokens": request.num_prior_tokens,
    }


def submit_from_pb(message: decode_pb2.Submit, now_s: float) -> Submission:
    """An attempt from a message that arrives at ``now_s``.

    Raises:
        FeatureUnavailable: it has fields that this build does not know.
        BadRequest: it is malformed; ``param`` names the field.
    """
    refuse_unknown_fields(message)
    request = EngineRequest(
        key=RequestKey(message.request_id, message.attempt),
        prompt_ids=tuple(message.prompt_ids),
        choices=tuple(
            ChoiceState(index=c.index, emitted_ids=tuple(c.emitted_ids), finished=c.finished) for c in message.choices
        ),
        sampling=SAMPLING.from_pb(message.sampling),
        seed=message.seed,
        terms=terms_from_pb(message.terms, now_s),
        num_prior_tokens=message.num_prior_tokens,
    )
    return Submission(
        request=request,
        model_digest=message.model_digest,
        handoff_id=message.handoff_id,
        prefill=tuple(REF.from_pb(ref) for ref in message.prefill),
        trace=trace_from_pb(message.trace),
        required_features=frozenset(message.required_features),
        meter=METER_TAG.from_pb(message.meter) if message.HasField("meter") else None,
    )


# -- down --------------------------------------------------------------------------------------------


def delta_to_pb(delta: RequestDelta) -> decode_pb2.RequestOutput:
    """News of a request as a message."""
    return decode_pb2.RequestOutput(
        request_id=delta.key.request_id,
        attempt=delta.key.attempt,
        deltas=[_choice_to_pb(choice) for choice in delta.choices],
        error=None if delta.error is None else to_error_detail(delta.error),
        receipt=None if delta.receipt is None else _RECEIPT.to_pb(delta.receipt),
        prompt_logprobs=[_position_to_pb(position) for position in delta.prompt_logprobs],
        drafts=None if delta.drafts is None else _DRAFTS.to_pb(delta.drafts),
    )


def delta_from_pb(message: decode_pb2.RequestOutput, key: RequestKey | None = None) -> RequestDelta:
    """News of a request from a message, whose key may have been read before."""
    return RequestDelta(
        key=key or RequestKey(message.request_id, message.attempt),
        choices=tuple([_choice_from_pb(delta) for delta in message.deltas]),
        error=from_error_detail(message.error) if message.HasField("error") else None,
        receipt=_RECEIPT.from_pb(message.receipt) if message.HasField("receipt") else None,
        prompt_logprobs=_positions_from_pb(message.prompt_logprobs) if message.prompt_logprobs else (),
        drafts=_DRAFTS.from_pb(message.drafts) if message.HasField("drafts") else None,
    )


def tokens_from_pb(message: decode_pb2.RequestOutput) -> ChoiceDelta | None:
    """New tokens of one choice from a message that has nothing else, as most have; ``None`` for any other."""
    deltas = message.deltas
    if len(deltas) != 1 or message.prompt_logprobs or any(map(message.HasField, _ONCE)):
        return None
    return _choice_from_pb(deltas[0])


def step_to_pb(
    step: int, num_submits: int, deltas: Iterable[RequestDelta], submit_of: Mapping[RequestKey, int]
) -> decode_pb2.StepOutputs:
    """News of one step as a message.

    Args:
        step: of the engine.
        num_submits: that the session has taken.
        deltas: news of its requests.
        submit_of: number of the Submit of each request that may be in the columns; empty for a gateway without them.
    """
    outputs, submits, offsets, token_ids = [], [], [], []
    for delta in deltas:
        number = submit_of.get(delta.key)
        if number is None or not _is_one_token(delta):
            outputs.append(delta_to_pb(delta))
            continue
        [choice] = delta.choices
        submits.append(number)
        offsets.append(choice.offset)
        token_ids.append(choice.token_ids[0])
    columns = decode_pb2.TokenColumns(submits=submits, offsets=offsets, token_ids=token_ids) if submits else None
    return decode_pb2.StepOutputs(engine_step=step, outputs=outputs, num_submits=num_submits, tokens=columns)


def _is_one_token(delta: RequestDelta) -> bool:
    """It says no more than the next token of choice 0, as nearly all do."""
    choices = delta.choices
    if len(choices) != 1 or delta.error or delta.receipt or delta.prompt_logprobs or delta.drafts:
        return False
    choice = choices[0]
    return not (choice.index or choice.logprobs or choice.finish_reason) and len(choice.token_ids) == 1


def _choice_to_pb(choice: ChoiceDelta) -> decode_pb2.ChoiceDelta:
    return decode_pb2.ChoiceDelta(
        index=choice.index,
        offset=choice.offset,
        token_ids=choice.token_ids,
        logprobs=[_position_to_pb(position) for position in choice.logprobs],
        finish_reason=None if choice.finish_reason is None else FINISH_REASONS[choice.finish_reason],
    )


def _choice_from_pb(message: decode_pb2.ChoiceDelta) -> ChoiceDelta:
    return ChoiceDelta(
        index=message.index,
        offset=message.offset,
        token_ids=tuple(message.token_ids),
        logprobs=_positions_from_pb(message.logprobs) if message.logprobs else (),
        finish_reason=_finish_reason_from_pb(message.finish_reason) if message.finish_reason else None,
    )


def _finish_reason_from_pb(number: int) -> FinishReason:
    if number not in _REASONS_BY_NUMBER:  # not None: the choice would seem to go on for ever
        raise Internal(f"unknown finish reason {number}")
    return _REASONS_BY_NUMBER[number]


def _position_to_pb(position: PositionLogprobs) -> decode_pb2.PositionLogprobs:
    return decode_pb2.PositionLogprobs(
        sampled=_logprob_to_pb(position.sampled), top=[_logprob_to_pb(entry) for entry in position.top]
    )


def _logprob_to_pb(entry: TokenLogprob) -> decode_pb2.TokenLogprob:
    return decode_pb2.TokenLogprob(token_id=entry.token_id, logprob=entry.logprob, rank=entry.rank)


def _positions_from_pb(entries: Iterable[decode_pb2.PositionLogprobs]) -> tuple[PositionLogprobs, ...]:
    return tuple(PositionLogprobs(_logprob_from_pb(p.sampled), tuple(map(_logprob_from_pb, p.top))) for p in entries)


def _logprob_from_pb(message: decode_pb2.TokenLogprob) -> TokenLogprob:
    return TokenLogprob(message.token_id, message.logprob, message.rank)
