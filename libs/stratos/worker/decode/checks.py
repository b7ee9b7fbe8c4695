"""Requirements of a worker on a request before it runs it; ``stratos.rpc.codec`` made records of the messages."""

from __future__ import annotations

import dataclasses

from stratos.common.errors import (
    BadRequest,
    ContextLengthExceeded,
    FeatureUnavailable,
    IdentityMismatch,
    QueueTimeout,
)
from stratos.core.features import PROTOCOL_VERSION, can_speak_with, required_features
from stratos.core.generation import Submission
from stratos.core.requests import limits
from stratos.core.requests.records import EngineRequest
from stratos.core.requests.sampling_params import SamplingParams
from stratos.core.requests.terms import RequestTerms
from stratos.core.requests.watermark import check_watermark
from stratos.engine.contract.runner import RunnerInfo
from stratos.worker.features import check_features

MAX_ID_CHARS = 200
MAX_SALT_BYTES = 64
KV_KEY_BYTES = 32
MAX_PREFILL_ENDPOINTS = 2


def check_protocol(version: int) -> None:
    """Refuse a gateway of a protocol version that this build cannot speak.

    Raises:
        FeatureUnavailable: the gateway has to use another worker.
    """
    if not can_speak_with(version):
        raise FeatureUnavailable(f"protocol version {version} and this worker's {PROTOCOL_VERSION} are too far apart")


def check_submission(submission: Submission, info: RunnerInfo, features: frozenset[str]) -> Submission:
    """Check an attempt completely; returns what the worker runs.

    Args:
        submission: as it came.
        info: facts of the model this worker runs.
        features: that this worker offers.

    Raises:
        FeatureUnavailable: it needs a feature that is not offered.
        BadRequest, ContextLengthExceeded: a field is out of range; ``param`` names it.
        IdentityMismatch: another base model is meant.
        QueueTimeout: the deadline has passed already.
    """
    check_model(submission.model_digest, info)
    request = submission.request
    check_features(submission.required_features | required_features(request), features)
    check_id(request.key.request_id, "request_id")
    limits.check_token_ids(request.prompt_ids, info.vocab_size, "prompt_ids")
    limits.check_prompt_length(len(request.prompt_ids), info.max_model_len, info.max_model_len, "prompt_ids")
    check_sampling(request.sampling, info.vocab_size)
    limits.check_prompt_logprobs(len(request.prompt_ids), request.sampling.num_prompt_logprobs, "num_prompt_logprobs")
    request = dataclasses.replace(request, terms=check_terms(request.terms))
    _check_choices(request, info)
    return dataclasses.replace(submission, request=request, prefill=submission.prefill[:MAX_PREFILL_ENDPOINTS])


def check_model(model_digest: str, info: RunnerInfo) -> None:
    """Refuse a request that means another base model."""
    if model_digest != info.identity.model_digest:
        raise IdentityMismatch("this worker serves another base model; ask the router for a new placement")


def check_id(value: str, param: str) -> str:
    """Refuse an identifier that is empty, too long or not printable ASCII."""
    if not value or len(value) > MAX_ID_CHARS or not (value.isascii() and value.isprintable()):
        raise BadRequest(f"{param} must be 1 to {MAX_ID_CHARS} printable ASCII characters", param=param)
    return value


def check_terms(terms: RequestTerms) -> RequestTerms:
    """Check the terms of a request that arrived just now; a long id or name of a tenant is cut.

    Raises:
        BadRequest: salt, key or class is out of range.
        QueueTimeout: the deadline has passed already.
    """
    if len(terms.cache_salt) > MAX_SALT_BYTES:
        raise BadRequest(f"cache_salt may have at most {MAX_SALT_BYTES} bytes", param="cache_salt")
    if len(terms.kv_key) not in (0, KV_KEY_BYTES):
        raise BadRequest(f"kv_key must be empty or have {KV_KEY_BYTES} bytes", param="kv_key")
    if terms.priority_class >= limits.NUM_PRIORITY_CLASSES:
        raise BadRequest(f"priority_class must be below {limits.NUM_PRIORITY_CLASSES}", param="priority_class")
    if terms.left_s(terms.arrival_s) == 0:
        raise QueueTimeout("the request's deadline passed before it reached the worker")
    return dataclasses.replace(terms, tenant=terms.tenant[:MAX_ID_CHARS], tenant_name=terms.tenant_name[:MAX_ID_CHARS])


def check_sampling(params: SamplingParams, vocab_size: int) -> None:
    """Check sampling parameters against the limits table; the codec has checked the grammar.

    Raises:
        BadRequest: a value is out of range; ``param`` names it.
    """
    for field in dataclasses.fields(params):
        value = getattr(params, field.name)
        if field.name in limits.LIMITS and value is not None:
            limits.check_number(field.name, value)
    if params.min_tokens > params.max_tokens:
        raise BadRequest("min_tokens must not be above max_tokens", param="min_tokens")
    limits.check_logit_bias(params.logit_bias, vocab_size)
    limits.check_stop_token_ids(list(params.stop_token_ids), vocab_size)
    allowed = list(params.allowed_token_ids) or None
    limits.check_token_id_list(allowed, vocab_size, "allowed_token_ids", limits.MAX_ALLOWED_TOKEN_IDS)
    limits.check_bad_sequences(params.bad_sequences, vocab_size)
    if params.watermark is not None:
        check_watermark(params.watermark)


def _check_choices(request: EngineRequest, info: RunnerInfo) -> None:
    choices = request.choices
    limits.check_number("n", len(choices), "choices")
    if len({choice.index for choice in choices}) != len(choices):
        raise BadRequest("choices must have different indexes", param="choices")
    if all(choice.finished for choice in choices):
        raise BadRequest("every choice is finished: there is nothing to do", param="choices")
    for choice in choices:
        limits.check_number("n", choice.index + 1, "choices")
        num_emitted = len(limits.check_token_ids(choice.emitted_ids, info.vocab_size, "choices"))
        if not choice.finished and num_emitted >= request.sampling.max_tokens:
            raise BadRequest("an unfinished choice has emitted max_tokens tokens already", param="choices")
        if not choice.finished and len(request.prompt_ids) + num_emitted >= info.max_model_len:
            raise ContextLengthExceeded("prompt and emitted tokens fill the model's context", param="choices")
