"""Features that not every worker of a mixed fleet understands, and protocol versions that may talk to one another.

A field that a worker does not know would be dropped, and the answer would be wrong with status 200.  So each field of
a request is listed here: ``BASIC`` ones are understood by every build of protocol version 1, the others need the
feature that stands beside them.  Workers say which features they offer, the router chooses by that, and a worker
refuses what it does not offer.

    a field is added      it gets a feature of its own, unless dropping it changes no answer
    a value is added      (a kind of grammar, of pooling) it gets a feature, too
    a meaning is changed  ``PROTOCOL_VERSION`` is raised
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from operator import attrgetter

from stratos.core.requests.embedding import EmbedCall, PoolingKind
from stratos.core.requests.grammar import GrammarKind
from stratos.core.requests.records import EngineRequest
from stratos.core.requests.sampling_params import SamplingParams

PROTOCOL_VERSION = 1
"""Of sessions, statuses and embedding calls; a build speaks its own version and the ones beside it."""


class Feature(enum.StrEnum):
    """A feature that a worker may offer; the values travel."""

    ADAPTERS = "adapters"
    ALLOWED_TOKENS = "allowed_tokens"
    BAD_SEQUENCES = "bad_sequences"
    CALL_GRAMMAR = "call_grammar"
    EMBEDDINGS = "embeddings"
    GRAMMAR = "grammar"
    KV_KEYS = "kv_keys"
    """Keys that seal KV on disk: only sent to workers that have a disk tier; without one KV is computed again."""
    PINS = "pins"
    """KV of prompts that is kept for a time: a preference, so it is never required, and left out for others."""
    PRIOR_TOKENS = "prior_tokens"
    """Choices that an earlier answer began: the request is a new one."""
    PROMPT_LOGPROBS = "prompt_logprobs"
    RESUME = "resume"
    """Choices that earlier attempts began."""
    SEVERAL_CHOICES = "several_choices"
    WATERMARK = "watermark"


BASIC: Feature | None = None
"""Understood by every build of version 1, or without effect on the answer."""

SAMPLING: Mapping[str, Feature | None] = {
    "temperature": BASIC,
    "top_p": BASIC,
    "top_k": BASIC,
    "min_p": BASIC,
    "repetition_penalty": BASIC,
    "frequency_penalty": BASIC,
    "presence_penalty": BASIC,
    "logit_bias": BASIC,
    "max_tokens": BASIC,
    "min_tokens": BASIC,
    "ignore_eos": BASIC,
    "stop_token_ids": BASIC,
    "drafts_off": BASIC,
    "num_logprobs": BASIC,
    "allowed_token_ids": Feature.ALLOWED_TOKENS,
    "bad_sequences": Feature.BAD_SEQUENCES,
    "grammar": Feature.GRAMMAR,
    "num_prompt_logprobs": Feature.PROMPT_LOGPROBS,
    "watermark": Feature.WATERMARK,
}
"""Fields of ``SamplingParams``; a feature is needed where a field differs from its default."""

SUBMIT: Mapping[str, Feature | None] = {
    "request_id": BASIC,
    "attempt": BASIC,
    "handoff_id": BASIC,
    "prompt_ids": BASIC,
    "choices": BASIC,
    "choices.index": Feature.SEVERAL_CHOICES,
    "choices.emitted_ids": Feature.RESUME,
    "choices.finished": Feature.RESUME,
    "sampling": BASIC,
    "seed": BASIC,
    "model_digest": BASIC,
    "terms": BASIC,
    "terms.tenant": BASIC,
    "terms.tenant_name": BASIC,
    "terms.cache_salt": BASIC,
    "terms.priority_class": BASIC,
    "terms.adapter": Feature.ADAPTERS,
    "terms.deadline_ms": BASIC,
    "terms.end_ms": BASIC,  # the gateway ends the stream as well
    "terms.age_ms": BASIC,  # a worker that does not read it serves the request as one that arrived now
    "terms.pins": Feature.PINS,  # a preference: left out, not required, where a worker does not offer it
    "terms.kv_key": Feature.KV_KEYS,  # likewise
    "prefill": BASIC,
    "trace": BASIC,
    "required_features": BASIC,
    "meter": BASIC,
    "num_prior_tokens": Feature.PRIOR_TOKENS,
}
"""Fields of the message that starts a request, those of its choices and its terms included."""

EMBED: Mapping[str, Feature | None] = {
    "request_id": BASIC,
    "attempt": BASIC,
    "inputs": Feature.EMBEDDINGS,
    "pooling": BASIC,
    "normalizes": BASIC,
    "num_dimensions": BASIC,
    "model_digest": BASIC,
    "terms": BASIC,
    "trace": BASIC,
}
"""Fields of an embeddings call."""

GRAMMARS: Mapping[GrammarKind, Feature] = {
    GrammarKind.JSON_SCHEMA: Feature.GRAMMAR,
    GrammarKind.REGEX: Feature.GRAMMAR,
    GrammarKind.CHOICE: Feature.GRAMMAR,
    GrammarKind.LARK: Feature.GRAMMAR,
    GrammarKind.CALLS: Feature.CALL_GRAMMAR,
}
POOLINGS: Mapping[PoolingKind, Feature] = dict.fromkeys((PoolingKind.LAST, PoolingKind.MEAN), Feature.EMBEDDINGS)

_FEATURES_OF_SAMPLING = tuple((name, feature) for name, feature in SAMPLING.items() if feature is not None)
_sampling_values = attrgetter(*(name for name, _ in _FEATURES_OF_SAMPLING))
_SAMPLING_DEFAULTS = _sampling_values(SamplingParams())
_NOTHING = frozenset[str]()


def required_features(request: EngineRequest) -> frozenset[str]:
    """Features that a worker must offer to run a generation."""
    sampling, needed = request.sampling, set[str]()
    if (values := _sampling_values(sampling)) != _SAMPLING_DEFAULTS:
        rows = zip(_FEATURES_OF_SAMPLING, values, _SAMPLING_DEFAULTS, strict=True)
        needed.update(feature for (_, feature), value, default in rows if value != default)
    if sampling.grammar is not None:
        needed.add(GRAMMARS[sampling.grammar.kind])
    if len(request.choices) > 1:
        needed.add(Feature.SEVERAL_CHOICES)
    for choice in request.choices:
        if choice.emitted_ids or choice.finished:
            needed.add(Feature.RESUME)
    if request.num_prior_tokens:
        needed.add(Feature.PRIOR_TOKENS)
    if request.terms.adapter.digest:
        needed.add(Feature.ADAPTERS)
    return frozenset(needed) if needed else _NOTHING


def features_of_call(call: EmbedCall) -> frozenset[str]:
    """Features that a worker must offer to embed."""
    needed: set[str] = {Feature.EMBEDDINGS, POOLINGS[call.pooling]}
    if call.terms.adapter.digest:
        needed.add(Feature.ADAPTERS)
    return frozenset(needed)


def can_speak_with(version: int) -> bool:
    """A peer of that protocol version understands this build, and is understood."""
    return abs(version - PROTOCOL_VERSION) <= 1


def name_features(features: Iterable[str]) -> str:
    """Features in a text for people."""
    return ", ".join(sorted(str(feature).replace("_", " ") for feature in features))
