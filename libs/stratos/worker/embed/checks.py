"""Requirements of a worker on an embeddings call before it runs it."""

from __future__ import annotations

import dataclasses

from stratos.common.errors import BadRequest, ContextLengthExceeded
from stratos.core.features import features_of_call
from stratos.core.requests import limits
from stratos.core.requests.embedding import EmbedCall
from stratos.engine.contract.runner import RunnerInfo
from stratos.worker.decode.checks import check_id, check_model, check_terms
from stratos.worker.features import check_features


def check_call(call: EmbedCall, info: RunnerInfo, features: frozenset[str]) -> EmbedCall:
    """Check a call completely; returns what the worker runs.

    Raises:
        FeatureUnavailable: it needs a feature that is not among ``features``.
        BadRequest, ContextLengthExceeded: a field is out of range; ``param`` names it.
        IdentityMismatch: another base model is meant.
        QueueTimeout: the deadline has passed already.
    """
    check_model(call.model_digest, info)
    if info.embedding_size:  # else the engine refuses: the model cannot embed at all
        check_features(features_of_call(call), features)
    terms = check_terms(call.terms)
    check_id(call.request_id, "request_id")
    _check_inputs(call.inputs, info)
    return dataclasses.replace(call, terms=terms)


def _check_inputs(inputs: tuple[tuple[int, ...], ...], info: RunnerInfo) -> None:
    if not 1 <= len(inputs) <= limits.MAX_EMBEDDING_INPUTS:
        raise BadRequest(f"inputs must be 1 to {limits.MAX_EMBEDDING_INPUTS}", param="inputs")
    if any(len(ids) > info.max_model_len for ids in inputs):
        raise ContextLengthExceeded(f"an input has more than {info.max_model_len} tokens", param="inputs")
    for ids in inputs:
        limits.check_token_ids(ids, info.vocab_size, "inputs")
    if not all(inputs):
        raise BadRequest("an input to embed needs at least one token", param="inputs")
