"""A kept answer that its client does not take costs the tenant nothing, neither money nor its limits."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry
from starlette.requests import ClientDisconnect

from stratos.common.clock import FakeClock
from stratos.core.generation import ChoiceDelta
from stratos.core.ledger.usage import MeterTag
from stratos.core.requests.records import FinishReason
from stratos.core.requests.sampling_params import SamplingParams
from stratos.core.tenancy.plan import Plan
from stratos.core.tenant import Tenant
from stratos_gateway.access.concurrency import Place
from stratos_gateway.answering.spec import GenerationSpec
from stratos_gateway.completion.requests import parse_completion
from stratos_gateway.generation.fanout import Fanout
from stratos_gateway.generation.prompt_names import PrefixHashes
from stratos_gateway.http.errors import OPENAI_ERRORS
from stratos_gateway.ledger.meter import Meter
from stratos_gateway.ledger.step import AccountStep
from stratos_gateway.limits.step import LimitsStep
from stratos_gateway.metrics import GatewayMetrics
from stratos_gateway.openai.chunks import ChoiceChunk
from stratos_gateway.overflow.request import external_request
from stratos_gateway.response_cache.cache import KeptAnswer, KeptPrompt, ResponseCache
from stratos_gateway.response_cache.key import response_key
from stratos_gateway.response_cache.source import CacheSource
from stratos_gateway.responses.requests import parse_response
from tests.support.entered import inside
from tests.support.fakes.gateway_fakes import FakeRouter, FakeSessions, make_platform
from tests.support.fakes.generous_limiter import GenerousLimiter
from tests.support.reference.shipped_model import shipped_tokenizer

TENANT = Tenant(name="t", id="tn_1", plan=Plan(name="kept", response_cache=True))
SPEC = GenerationSpec(
    terms=TENANT.terms(), model_digest="d", prompt_ids=(1, 2) * 300, sampling=SamplingParams(temperature=0.0), seed=0,
    meter=MeterTag(model="m"),
)  # fmt: skip
HASHES = PrefixHashes(lambda tenant_id, purpose: bytes(32), 64)
OPTIONS = parse_completion({"model": "m", "prompt": "x", "temperature": 0}, 100).options
ANSWER = KeptAnswer(
    chunks=(ChoiceChunk(0, "text", [7], [], "stop", True),),
    prompts=(KeptPrompt(num_prompt_tokens=600, num_cached_tokens=0, num_output_tokens=1),),
)


@pytest.mark.parametrize("is_taken", [True, False])
async def test_an_answer_that_is_not_taken_is_neither_billed_nor_limited(is_taken: bool) -> None:
    clock, limiter = FakeClock(), GenerousLimiter()
    cache, meter = ResponseCache(clock, 1 << 20, GatewayMetrics(CollectorRegistry())), Meter(clock, 1.0)
    key = response_key(TENANT.plan, OPTIONS, (SPEC,))
    assert key is not None
    cache.keep(key, TENANT.id, ANSWER, 60)
    request: Any = SimpleNamespace(
        prepared=SimpleNamespace(
            num_tokens=1000, num_sequences=1, options=OPTIONS, specs=(SPEC,), base_model="base"
        ), tenant=TENANT,
        exchange=SimpleNamespace(headers=[], error_form=OPENAI_ERRORS),
        notices=[], trail={}, output=None, error=None, screen=None,
        is_exact=False, num_claimed_tokens=0, http=SimpleNamespace(scope={}), place=Place(1),
    )  # fmt: skip
    try:
        async with (
            inside(LimitsStep(cast("Any", limiter)).around(request), AccountStep(meter).around(request)),
            CacheSource(cache, hashes=HASHES).open(request) as output,
        ):  # fmt: skip
            request.output = output
            assert output is not None
            if not is_taken:
                raise ClientDisconnect
    except ClientDisconnect:
        assert not is_taken
    assert limiter.settled == [0]
    assert [entry.prefix_hashes for entry in meter.take_ready()] == [HASHES.of(SPEC)] * is_taken


@pytest.mark.parametrize(("num_second", "is_kept"), [(100, True), (50, False)])
async def test_an_answer_that_memory_cut_short_is_not_kept_whatever_the_other_prompts_may_have(
    num_second: int, is_kept: bool
) -> None:
    """The first prompt leaves room for ten tokens, the second for a hundred."""
    cache = ResponseCache(FakeClock(), 1 << 20, GatewayMetrics(CollectorRegistry()))
    specs = [replace(SPEC, sampling=SamplingParams(temperature=0.0, max_tokens=most)) for most in (10, 100)]
    output = Fanout(specs, 1, ((), False), shipped_tokenizer(), make_platform(FakeRouter(), FakeSessions([])))
    request: Any = SimpleNamespace(
        prepared=SimpleNamespace(options=OPTIONS, specs=specs),
        tenant=TENANT,
        output=output,
        screen=None,
        is_exact=False,
    )
    async with CacheSource(cache).open(request) as found:
        assert found is None
        for generation, number in zip(output.generations, (10, num_second), strict=True):
            delta = ChoiceDelta(index=0, offset=0, token_ids=[7] * number, finish_reason=FinishReason.LENGTH)
            generation.transcript.accept(delta, 0.0)
        request.when_sent(output.take())
    async with CacheSource(cache).open(request) as found:
        assert (found is not None) == is_kept


def test_what_is_to_be_computed_here_is_neither_kept_nor_asked_of_others() -> None:
    body = {"model": "m", "input": "x", "temperature": 0}
    plain, warm_up = parse_response(body, 100), parse_response({**body, "generate": False}, 100)
    assert response_key(TENANT.plan, plain.options, (SPEC,)) is not None
    assert response_key(TENANT.plan, warm_up.options, (SPEC,)) is None
    assert external_request(plain) is not None
    assert external_request(warm_up) is None
