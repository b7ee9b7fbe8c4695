"""The key of an answer: equal for two requests exactly when their output is determined and the same.

The cache salt of the request is part of it, so answers are shared exactly as prefixes are: by a tenant, by one of its
keys, or not at all.  How an answer is shown (a stream, log probabilities as text) is no part of it: it is rendered for
each request.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from stratos.core.tenancy.plan import CachePolicy, Plan
from stratos_gateway.answering.spec import GenerationSpec
from stratos_gateway.openai.requests import GenerationOptions


def response_key(plan: Plan, options: GenerationOptions, specs: Sequence[GenerationSpec]) -> bytes | None:
    """The key of a request's answer; ``None`` where answers are not kept."""
    if not plan.response_cache or plan.cache_policy is CachePolicy.OFF:
        return None
    if options.is_warm_up or (options.seed is None and any(spec.sampling.temperature > 0 for spec in specs)):
        return None
    seed = options.seed if any(spec.sampling.temperature > 0 for spec in specs) else None
    parts = [
        (s.terms.tenant, s.terms.cache_salt, s.model_digest, s.terms.adapter.digest, s.prompt_ids, s.sampling,
         s.continues_prompt, sorted(s.shown_ids))
        for s in specs
    ]  # fmt: skip
    return hashlib.sha256(repr((parts, options.n, options.stop, options.include_stop, seed)).encode()).digest()
