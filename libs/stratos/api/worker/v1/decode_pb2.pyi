from stratos.api.common.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_STOP: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]
    FINISH_REASON_ABORT: _ClassVar[FinishReason]
    FINISH_REASON_GRAMMAR: _ClassVar[FinishReason]
    FINISH_REASON_EXHAUSTED: _ClassVar[FinishReason]

class PrefillPath(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PREFILL_PATH_UNSPECIFIED: _ClassVar[PrefillPath]
    PREFILL_PATH_HANDOFF: _ClassVar[PrefillPath]
    PREFILL_PATH_LOCAL_SHORT_TAIL: _ClassVar[PrefillPath]
    PREFILL_PATH_LOCAL_NO_ENDPOINT: _ClassVar[PrefillPath]
    PREFILL_PATH_LOCAL_FALLBACK: _ClassVar[PrefillPath]
    PREFILL_PATH_LOCAL_PROMPT_LOGPROBS: _ClassVar[PrefillPath]
    PREFILL_PATH_EXTERNAL: _ClassVar[PrefillPath]
    PREFILL_PATH_LOCAL_TAIL: _ClassVar[PrefillPath]
    PREFILL_PATH_LOCAL_SPILL: _ClassVar[PrefillPath]
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_STOP: FinishReason
FINISH_REASON_LENGTH: FinishReason
FINISH_REASON_ABORT: FinishReason
FINISH_REASON_GRAMMAR: FinishReason
FINISH_REASON_EXHAUSTED: FinishReason
PREFILL_PATH_UNSPECIFIED: PrefillPath
PREFILL_PATH_HANDOFF: PrefillPath
PREFILL_PATH_LOCAL_SHORT_TAIL: PrefillPath
PREFILL_PATH_LOCAL_NO_ENDPOINT: PrefillPath
PREFILL_PATH_LOCAL_FALLBACK: PrefillPath
PREFILL_PATH_LOCAL_PROMPT_LOGPROBS: PrefillPath
PREFILL_PATH_EXTERNAL: PrefillPath
PREFILL_PATH_LOCAL_TAIL: PrefillPath
PREFILL_PATH_LOCAL_SPILL: PrefillPath

class SessionRequest(_message.Message):
    __slots__ = ("hello", "submit", "cancel", "attach", "usage_ack", "submit_number", "further")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    SUBMIT_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    ATTACH_FIELD_NUMBER: _ClassVar[int]
    USAGE_ACK_FIELD_NUMBER: _ClassVar[int]
    SUBMIT_NUMBER_FIELD_NUMBER: _ClassVar[int]
    FURTHER_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    submit: Submit
    cancel: Cancel
    attach: Attach
    usage_ack: UsageAck
    submit_number: int
    further: _containers.RepeatedCompositeFieldContainer[SessionRequest]
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., submit: _Optional[_Union[Submit, _Mapping]] = ..., cancel: _Optional[_Union[Cancel, _Mapping]] = ..., attach: _Optional[_Union[Attach, _Mapping]] = ..., usage_ack: _Optional[_Union[UsageAck, _Mapping]] = ..., submit_number: _Optional[int] = ..., further: _Optional[_Iterable[_Union[SessionRequest, _Mapping]]] = ...) -> None: ...

class SessionResponse(_message.Message):
    __slots__ = ("welcome", "step_outputs", "progress", "usage_counts")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    STEP_OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    USAGE_COUNTS_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    step_outputs: StepOutputs
    progress: Progress
    usage_counts: UsageCounts
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., step_outputs: _Optional[_Union[StepOutputs, _Mapping]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., usage_counts: _Optional[_Union[UsageCounts, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol_version", "features", "takes_token_columns")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    TAKES_TOKEN_COLUMNS_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    features: _containers.RepeatedScalarFieldContainer[str]
    takes_token_columns: bool
    def __init__(self, protocol_version: _Optional[int] = ..., features: _Optional[_Iterable[str]] = ..., takes_token_columns: _Optional[bool] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("worker", "protocol_version", "features", "takes_further")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    TAKES_FURTHER_FIELD_NUMBER: _ClassVar[int]
    worker: _common_pb2.WorkerRef
    protocol_version: int
    features: _containers.RepeatedScalarFieldContainer[str]
    takes_further: bool
    def __init__(self, worker: _Optional[_Union[_common_pb2.WorkerRef, _Mapping]] = ..., protocol_version: _Optional[int] = ..., features: _Optional[_Iterable[str]] = ..., takes_further: _Optional[bool] = ...) -> None: ...

class SamplingParams(_message.Message):
    __slots__ = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty", "logit_bias", "max_tokens", "min_tokens", "ignore_eos", "stop_token_ids", "num_logprobs", "allowed_token_ids", "bad_sequences", "grammar", "num_prompt_logprobs", "watermark", "drafts_off")
    class LogitBiasEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    NUM_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    BAD_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    WATERMARK_FIELD_NUMBER: _ClassVar[int]
    DRAFTS_OFF_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    frequency_penalty: float
    presence_penalty: float
    logit_bias: _containers.ScalarMap[int, float]
    max_tokens: int
    min_tokens: int
    ignore_eos: bool
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    num_logprobs: int
    allowed_token_ids: _containers.RepeatedScalarFieldContainer[int]
    bad_sequences: _containers.RepeatedCompositeFieldContainer[TokenSequence]
    grammar: Grammar
    num_prompt_logprobs: int
    watermark: Watermark
    drafts_off: bool
    def __init__(self, temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., min_p: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., logit_bias: _Optional[_Mapping[int, float]] = ..., max_tokens: _Optional[int] = ..., min_tokens: _Optional[int] = ..., ignore_eos: _Optional[bool] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., num_logprobs: _Optional[int] = ..., allowed_token_ids: _Optional[_Iterable[int]] = ..., bad_sequences: _Optional[_Iterable[_Union[TokenSequence, _Mapping]]] = ..., grammar: _Optional[_Union[Grammar, _Mapping]] = ..., num_prompt_logprobs: _Optional[int] = ..., watermark: _Optional[_Union[Watermark, _Mapping]] = ..., drafts_off: _Optional[bool] = ...) -> None: ...

class Watermark(_message.Message):
    __slots__ = ("key", "gamma", "delta", "num_context_tokens")
    KEY_FIELD_NUMBER: _ClassVar[int]
    GAMMA_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    NUM_CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    gamma: float
    delta: float
    num_context_tokens: int
    def __init__(self, key: _Optional[bytes] = ..., gamma: _Optional[float] = ..., delta: _Optional[float] = ..., num_context_tokens: _Optional[int] = ...) -> None: ...

class Grammar(_message.Message):
    __slots__ = ("kind", "text")
    KIND_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    kind: str
    text: str
    def __init__(self, kind: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class TokenSequence(_message.Message):
    __slots__ = ("token_ids",)
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class ChoiceState(_message.Message):
    __slots__ = ("index", "emitted_ids", "finished")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    EMITTED_IDS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    index: int
    emitted_ids: _containers.RepeatedScalarFieldContainer[int]
    finished: bool
    def __init__(self, index: _Optional[int] = ..., emitted_ids: _Optional[_Iterable[int]] = ..., finished: _Optional[bool] = ...) -> None: ...

class Submit(_message.Message):
    __slots__ = ("request_id", "attempt", "handoff_id", "prompt_ids", "choices", "sampling", "seed", "model_digest", "terms", "prefill", "trace", "required_features", "meter", "num_prior_tokens")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    HANDOFF_ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_IDS_FIELD_NUMBER: _ClassVar[int]
    CHOICES_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    MODEL_DIGEST_FIELD_NUMBER: _ClassVar[int]
    TERMS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_FIELD_NUMBER: _ClassVar[int]
    TRACE_FIELD_NUMBER: _ClassVar[int]
    REQUIRED_FEATURES_FIELD_NUMBER: _ClassVar[int]
    METER_FIELD_NUMBER: _ClassVar[int]
    NUM_PRIOR_TOKENS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    attempt: int
    handoff_id: str
    prompt_ids: _containers.RepeatedScalarFieldContainer[int]
    choices: _containers.RepeatedCompositeFieldContainer[ChoiceState]
    sampling: SamplingParams
    seed: int
    model_digest: str
    terms: _common_pb2.RequestTerms
    prefill: _containers.RepeatedCompositeFieldContainer[_common_pb2.WorkerRef]
    trace: _common_pb2.TraceContext
    required_features: _containers.RepeatedScalarFieldContainer[str]
    meter: MeterTag
    num_prior_tokens: int
    def __init__(self, request_id: _Optional[str] = ..., attempt: _Optional[int] = ..., handoff_id: _Optional[str] = ..., prompt_ids: _Optional[_Iterable[int]] = ..., choices: _Optional[_Iterable[_Union[ChoiceState, _Mapping]]] = ..., sampling: _Optional[_Union[SamplingParams, _Mapping]] = ..., seed: _Optional[int] = ..., model_digest: _Optional[str] = ..., terms: _Optional[_Union[_common_pb2.RequestTerms, _Mapping]] = ..., prefill: _Optional[_Iterable[_Union[_common_pb2.WorkerRef, _Mapping]]] = ..., trace: _Optional[_Union[_common_pb2.TraceContext, _Mapping]] = ..., required_features: _Optional[_Iterable[str]] = ..., meter: _Optional[_Union[MeterTag, _Mapping]] = ..., num_prior_tokens: _Optional[int] = ...) -> None: ...

class MeterTag(_message.Message):
    __slots__ = ("key_id", "model", "model_size", "adapter", "route", "http_request_id", "arrived_unix_ms", "num_cached_tokens", "cost_tags", "num_prior_tokens", "revision", "is_batch", "is_whole")
    class CostTagsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MODEL_SIZE_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    ROUTE_FIELD_NUMBER: _ClassVar[int]
    HTTP_REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ARRIVED_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    NUM_CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COST_TAGS_FIELD_NUMBER: _ClassVar[int]
    NUM_PRIOR_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    IS_BATCH_FIELD_NUMBER: _ClassVar[int]
    IS_WHOLE_FIELD_NUMBER: _ClassVar[int]
    key_id: str
    model: str
    model_size: str
    adapter: str
    route: str
    http_request_id: str
    arrived_unix_ms: int
    num_cached_tokens: int
    cost_tags: _containers.ScalarMap[str, str]
    num_prior_tokens: int
    revision: str
    is_batch: bool
    is_whole: bool
    def __init__(self, key_id: _Optional[str] = ..., model: _Optional[str] = ..., model_size: _Optional[str] = ..., adapter: _Optional[str] = ..., route: _Optional[str] = ..., http_request_id: _Optional[str] = ..., arrived_unix_ms: _Optional[int] = ..., num_cached_tokens: _Optional[int] = ..., cost_tags: _Optional[_Mapping[str, str]] = ..., num_prior_tokens: _Optional[int] = ..., revision: _Optional[str] = ..., is_batch: _Optional[bool] = ..., is_whole: _Optional[bool] = ...) -> None: ...

class UsageCount(_message.Message):
    __slots__ = ("request_id", "attempt", "tenant", "meter", "num_prompt_tokens", "num_cached_tokens", "num_output_tokens", "queue_ns", "prefill_ns", "decode_ns", "device_ns", "num_computed_tokens", "writes", "is_cut")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    METER_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_NS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_NS_FIELD_NUMBER: _ClassVar[int]
    DECODE_NS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_NS_FIELD_NUMBER: _ClassVar[int]
    NUM_COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    WRITES_FIELD_NUMBER: _ClassVar[int]
    IS_CUT_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    attempt: int
    tenant: str
    meter: MeterTag
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    queue_ns: int
    prefill_ns: int
    decode_ns: int
    device_ns: int
    num_computed_tokens: int
    writes: CacheWrites
    is_cut: bool
    def __init__(self, request_id: _Optional[str] = ..., attempt: _Optional[int] = ..., tenant: _Optional[str] = ..., meter: _Optional[_Union[MeterTag, _Mapping]] = ..., num_prompt_tokens: _Optional[int] = ..., num_cached_tokens: _Optional[int] = ..., num_output_tokens: _Optional[int] = ..., queue_ns: _Optional[int] = ..., prefill_ns: _Optional[int] = ..., decode_ns: _Optional[int] = ..., device_ns: _Optional[int] = ..., num_computed_tokens: _Optional[int] = ..., writes: _Optional[_Union[CacheWrites, _Mapping]] = ..., is_cut: _Optional[bool] = ...) -> None: ...

class CacheWrites(_message.Message):
    __slots__ = ("num_5m", "num_1h", "num_24h", "num_cached")
    NUM_5M_FIELD_NUMBER: _ClassVar[int]
    NUM_1H_FIELD_NUMBER: _ClassVar[int]
    NUM_24H_FIELD_NUMBER: _ClassVar[int]
    NUM_CACHED_FIELD_NUMBER: _ClassVar[int]
    num_5m: int
    num_1h: int
    num_24h: int
    num_cached: int
    def __init__(self, num_5m: _Optional[int] = ..., num_1h: _Optional[int] = ..., num_24h: _Optional[int] = ..., num_cached: _Optional[int] = ...) -> None: ...

class UsageCounts(_message.Message):
    __slots__ = ("counts",)
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    counts: _containers.RepeatedCompositeFieldContainer[UsageCount]
    def __init__(self, counts: _Optional[_Iterable[_Union[UsageCount, _Mapping]]] = ...) -> None: ...

class UsageAck(_message.Message):
    __slots__ = ("request_ids",)
    REQUEST_IDS_FIELD_NUMBER: _ClassVar[int]
    request_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, request_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class Cancel(_message.Message):
    __slots__ = ("request_id", "attempt", "choice_indexes", "num_tokens")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    CHOICE_INDEXES_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    attempt: int
    choice_indexes: _containers.RepeatedScalarFieldContainer[int]
    num_tokens: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, request_id: _Optional[str] = ..., attempt: _Optional[int] = ..., choice_indexes: _Optional[_Iterable[int]] = ..., num_tokens: _Optional[_Iterable[int]] = ...) -> None: ...

class Attach(_message.Message):
    __slots__ = ("request_id", "attempt", "num_received", "takes_over")
    class NumReceivedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    NUM_RECEIVED_FIELD_NUMBER: _ClassVar[int]
    TAKES_OVER_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    attempt: int
    num_received: _containers.ScalarMap[int, int]
    takes_over: bool
    def __init__(self, request_id: _Optional[str] = ..., attempt: _Optional[int] = ..., num_received: _Optional[_Mapping[int, int]] = ..., takes_over: _Optional[bool] = ...) -> None: ...

class TokenLogprob(_message.Message):
    __slots__ = ("token_id", "logprob", "rank")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    token_id: int
    logprob: float
    rank: int
    def __init__(self, token_id: _Optional[int] = ..., logprob: _Optional[float] = ..., rank: _Optional[int] = ...) -> None: ...

class PositionLogprobs(_message.Message):
    __slots__ = ("sampled", "top")
    SAMPLED_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    sampled: TokenLogprob
    top: _containers.RepeatedCompositeFieldContainer[TokenLogprob]
    def __init__(self, sampled: _Optional[_Union[TokenLogprob, _Mapping]] = ..., top: _Optional[_Iterable[_Union[TokenLogprob, _Mapping]]] = ...) -> None: ...

class ChoiceDelta(_message.Message):
    __slots__ = ("index", "offset", "token_ids", "logprobs", "finish_reason")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    index: int
    offset: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedCompositeFieldContainer[PositionLogprobs]
    finish_reason: FinishReason
    def __init__(self, index: _Optional[int] = ..., offset: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[_Union[PositionLogprobs, _Mapping]]] = ..., finish_reason: _Optional[_Union[FinishReason, str]] = ...) -> None: ...

class Receipt(_message.Message):
    __slots__ = ("num_prompt_tokens", "num_cached_tokens", "num_transferred_tokens", "num_recomputed_tokens", "prefill_path", "prefill_worker_id", "queue_ns", "prefill_ns", "transfer_ns", "numerics_id", "num_pinned_tokens", "writes")
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_TRANSFERRED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_RECOMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_PATH_FIELD_NUMBER: _ClassVar[int]
    PREFILL_WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_NS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_NS_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_NS_FIELD_NUMBER: _ClassVar[int]
    NUMERICS_ID_FIELD_NUMBER: _ClassVar[int]
    NUM_PINNED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    WRITES_FIELD_NUMBER: _ClassVar[int]
    num_prompt_tokens: int
    num_cached_tokens: int
    num_transferred_tokens: int
    num_recomputed_tokens: int
    prefill_path: PrefillPath
    prefill_worker_id: str
    queue_ns: int
    prefill_ns: int
    transfer_ns: int
    numerics_id: str
    num_pinned_tokens: int
    writes: CacheWrites
    def __init__(self, num_prompt_tokens: _Optional[int] = ..., num_cached_tokens: _Optional[int] = ..., num_transferred_tokens: _Optional[int] = ..., num_recomputed_tokens: _Optional[int] = ..., prefill_path: _Optional[_Union[PrefillPath, str]] = ..., prefill_worker_id: _Optional[str] = ..., queue_ns: _Optional[int] = ..., prefill_ns: _Optional[int] = ..., transfer_ns: _Optional[int] = ..., numerics_id: _Optional[str] = ..., num_pinned_tokens: _Optional[int] = ..., writes: _Optional[_Union[CacheWrites, _Mapping]] = ...) -> None: ...

class DraftUse(_message.Message):
    __slots__ = ("num_drafted", "num_accepted", "num_cut")
    NUM_DRAFTED_FIELD_NUMBER: _ClassVar[int]
    NUM_ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    NUM_CUT_FIELD_NUMBER: _ClassVar[int]
    num_drafted: int
    num_accepted: int
    num_cut: int
    def __init__(self, num_drafted: _Optional[int] = ..., num_accepted: _Optional[int] = ..., num_cut: _Optional[int] = ...) -> None: ...

class RequestOutput(_message.Message):
    __slots__ = ("request_id", "attempt", "deltas", "error", "receipt", "prompt_logprobs", "drafts")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    DELTAS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    DRAFTS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    attempt: int
    deltas: _containers.RepeatedCompositeFieldContainer[ChoiceDelta]
    error: _common_pb2.ErrorDetail
    receipt: Receipt
    prompt_logprobs: _containers.RepeatedCompositeFieldContainer[PositionLogprobs]
    drafts: DraftUse
    def __init__(self, request_id: _Optional[str] = ..., attempt: _Optional[int] = ..., deltas: _Optional[_Iterable[_Union[ChoiceDelta, _Mapping]]] = ..., error: _Optional[_Union[_common_pb2.ErrorDetail, _Mapping]] = ..., receipt: _Optional[_Union[Receipt, _Mapping]] = ..., prompt_logprobs: _Optional[_Iterable[_Union[PositionLogprobs, _Mapping]]] = ..., drafts: _Optional[_Union[DraftUse, _Mapping]] = ...) -> None: ...

class TokenColumns(_message.Message):
    __slots__ = ("submits", "offsets", "token_ids")
    SUBMITS_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    submits: _containers.RepeatedScalarFieldContainer[int]
    offsets: _containers.RepeatedScalarFieldContainer[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, submits: _Optional[_Iterable[int]] = ..., offsets: _Optional[_Iterable[int]] = ..., token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class StepOutputs(_message.Message):
    __slots__ = ("engine_step", "outputs", "num_submits", "tokens")
    ENGINE_STEP_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    NUM_SUBMITS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    engine_step: int
    outputs: _containers.RepeatedCompositeFieldContainer[RequestOutput]
    num_submits: int
    tokens: TokenColumns
    def __init__(self, engine_step: _Optional[int] = ..., outputs: _Optional[_Iterable[_Union[RequestOutput, _Mapping]]] = ..., num_submits: _Optional[int] = ..., tokens: _Optional[_Union[TokenColumns, _Mapping]] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("engine_step", "is_computing", "slow_step_ms", "num_submits")
    ENGINE_STEP_FIELD_NUMBER: _ClassVar[int]
    IS_COMPUTING_FIELD_NUMBER: _ClassVar[int]
    SLOW_STEP_MS_FIELD_NUMBER: _ClassVar[int]
    NUM_SUBMITS_FIELD_NUMBER: _ClassVar[int]
    engine_step: int
    is_computing: bool
    slow_step_ms: int
    num_submits: int
    def __init__(self, engine_step: _Optional[int] = ..., is_computing: _Optional[bool] = ..., slow_step_ms: _Optional[int] = ..., num_submits: _Optional[int] = ...) -> None: ...
