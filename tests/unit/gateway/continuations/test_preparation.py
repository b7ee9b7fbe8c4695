"""Which answers may be gone on with, and what a request with a token becomes."""

from __future__ import annotations

import asyncio
import dataclasses
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from stratos.common.changed import record
from stratos.common.continuation_errors import ContinuationStale
from stratos.common.errors import BadRequest, DependencyDown, StratosError, StreamGone
from stratos.core.adapter import Adapter
from stratos.core.requests.records import ChoiceState, FinishReason
from stratos.core.requests.sampling_params import SamplingParams
from stratos.core.requests.watermark import Watermark
from stratos.core.tenant import Tenant
from stratos.core.trace import TraceContext
from stratos.store.sealed.stream_store import Found, StreamRecord
from stratos.text.chat_template import ChatTemplate
from stratos.text.output.chat_format import chat_format
from stratos_gateway.answering.request import LINE, BatchLine, PreparedGeneration
from stratos_gateway.batches.terms import LineStep
from stratos_gateway.continuations.binding import request_binding
from stratos_gateway.continuations.settings import ContinuationsConfig
from stratos_gateway.continuations.tokens import ContinuationTokens
from stratos_gateway.models.catalogue import ModelCatalogue
from stratos_gateway.models.model_set import ModelSet
from stratos_gateway.models.served_model import ServedModel
from stratos_gateway.openai.chunks import Usage
from stratos_gateway.preparation.dialects import CHAT, COMPLETION, Dialect
from stratos_gateway.preparation.generation import GenerationPreparer, PreparationTools
from stratos_gateway.streams.asking import derived_seed
from stratos_gateway.streams.codec import Piece, add_piece, encode_block
from stratos_gateway.streams.cursor import Cursor
from stratos_gateway.streams.reading import RecordReading
from tests.support.reference.shipped_model import served_model
from tests.unit.gateway.continuations.test_tokens import STATE, key_of

PLAIN = Tenant(name="acme", cache_salt=b"salt", id="acme")
CAPPED = replace(PLAIN, plan=replace(PLAIN.plan, max_tokens=5))
EXHAUSTED, LENGTH = FinishReason.EXHAUSTED, FinishReason.LENGTH
TOKENS = ContinuationTokens(key_of, ContinuationsConfig())


async def prepare(
    tenant: Tenant = PLAIN,
    dialect: Dialect = COMPLETION,
    models: ModelSet | None = None,
    tokens: ContinuationTokens = TOKENS,
    **fields: Any,
) -> PreparedGeneration:
    tools = PreparationTools(
        catalogue=ModelCatalogue(models or ModelSet([replace(served_model(), default_max_tokens=20)]), None),
        wall_clock=lambda: 1000.5,
        continuations=tokens,
    )
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}]} if dialect is CHAT else {"prompt": [5, 6]}
    return await GenerationPreparer(tools, dialect).prepare(
        {"model": "base", **asked, **fields}, tenant, TraceContext()
    )


@pytest.mark.parametrize(
    ("tenant", "fields", "ends"),
    [
        (PLAIN, {}, {EXHAUSTED}),
        (PLAIN, {"max_tokens": 5}, {EXHAUSTED}),
        (CAPPED, {"dialect": CHAT}, {EXHAUSTED, LENGTH}),
        (CAPPED, {"max_tokens": 5}, {EXHAUSTED}),
        (PLAIN, {"logprobs": 1}, set()),
        (PLAIN, {"best_of": 2}, set()),
        (PLAIN, {"echo": True, "max_tokens": 0}, set()),
        (replace(PLAIN, id="keyless"), {}, set()),
        (replace(PLAIN, plan=replace(PLAIN.plan, content_policy="p")), {}, set()),
    ],
)
async def test_ends_that_are_open(tenant: Tenant, fields: dict[str, Any], ends: set[FinishReason]) -> None:
    prepared = await prepare(tenant, **fields)
    assert prepared.specs[0].open_ends == ends
    assert (prepared.token_of is not None) == bool(ends)


async def test_a_chat_that_may_call_tools_has_none() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    assert (await prepare(dialect=CHAT)).token_of is not None
    assert (await prepare(dialect=CHAT, tools=[tool])).token_of is None


async def test_the_plan_gives_so_many_tokens_more_and_the_whole_is_what_was_asked_for() -> None:
    first, lengths = await prepare(CAPPED, CHAT), list[int]()
    for _ in range(10):
        [spec] = first.specs
        lengths.append(spec.sampling.max_tokens)
        assert first.token_of is not None
        if LENGTH not in spec.open_ends:
            break
        token = first.token_of([[ChoiceState(index=0, emitted_ids=(7,) * spec.sampling.max_tokens)]])
        assert TOKENS.open("acme", token).expires_unix_s == 1000 + 3600
        rest = await prepare(CAPPED, CHAT, continuation_token=token)
        assert rest.identity.seed == first.identity.seed
        assert rest.identity.answer_id != first.identity.answer_id
        assert rest.specs[0].num_prior_tokens == spec.sampling.max_tokens
        assert rest.specs[0].num_told_prompt_tokens == 0
        first = rest
    assert lengths == [5, 10, 15, 20], "20 is the default of the model"


@pytest.mark.parametrize(("n", "max_tokens", "is_open"), [(1, 20, True), (2, 10, True), (2, 11, False)])
async def test_several_choices_have_one_only_where_any_output_has_room_in_it(
    n: int, max_tokens: int, is_open: bool
) -> None:
    """A choice that ends first is told without what is held back, whatever comes of the others."""
    tokens = ContinuationTokens(key_of, ContinuationsConfig(max_bytes=1024 + 4 * 20))
    prepared = await prepare(tokens=tokens, n=n, max_tokens=max_tokens)
    assert bool(prepared.specs[0].open_ends) == is_open


async def test_a_rest_may_be_asked_for_by_the_length_of_the_whole() -> None:
    first = await prepare(CAPPED, CHAT)
    assert first.token_of is not None
    token = first.token_of([[ChoiceState(index=0, emitted_ids=(7,) * 5)]])
    for wanted, ends in ((8, {EXHAUSTED}), (10, {EXHAUSTED})):
        [spec] = (await prepare(CAPPED, CHAT, continuation_token=token, max_tokens=wanted)).specs
        assert (spec.sampling.max_tokens, spec.open_ends) == (wanted, ends)
    for fields in ({"continuation_token": token, "max_tokens": 11}, {"max_tokens": 6}):
        with pytest.raises(BadRequest, match="max_tokens must be at most"):
            await prepare(CAPPED, CHAT, **fields)


@record(frozen=True, slots=True, kw_only=True)
class LaterParams(SamplingParams):
    """As a version to come may have them."""

    another: int = 0


async def test_the_binding_is_of_what_tokens_depend_on_and_of_no_version() -> None:
    [spec], options = (await prepare(temperature=0.5, logit_bias={"7": 1, "5": 2})).specs, (await prepare()).options

    def bound(**changed: Any) -> str:
        return request_binding("completion", options, [replace(spec, sampling=replace(spec.sampling, **changed))])

    same = replace(spec.sampling, logit_bias=dict(sorted(spec.sampling.logit_bias.items())))
    later = LaterParams(**{f.name: getattr(same, f.name) for f in dataclasses.fields(same)})
    assert bound() == bound(max_tokens=3, drafts_off=True)
    assert request_binding("completion", options, [replace(spec, sampling=later)]) == bound()
    others = [
        bound(temperature=0.0), bound(logit_bias={5: 2.0}), bound(watermark=Watermark(key=b"k" * 16)),
        bound(min_tokens=2), request_binding("chat", options, [spec]),
        request_binding("completion", options, [spec, spec]),
    ]  # fmt: skip
    assert len({bound(), *others}) == 1 + len(others)


async def test_a_line_of_a_batch_goes_on_with_the_seed_of_its_first_part_and_arrived_when_its_slice_did() -> None:
    first = await prepare()
    assert first.token_of is not None
    token, seeds = first.token_of([[ChoiceState(index=0, emitted_ids=(7, 8, 9))]]), list[int]()
    for more in ({}, {"continuation_token": token}):
        line = BatchLine(name="batch_1-0", epoch=1, created_unix_s=5, arrived_unix_ms=7)
        request: Any = SimpleNamespace(
            prepared=await prepare(**more), tenant=PLAIN, http=SimpleNamespace(scope={LINE: line})
        )
        async with LineStep().around(request):
            seeds.append(request.prepared.specs[0].seed)
            assert request.prepared.identity.arrived_unix_ms == 7
    assert seeds == [derived_seed(PLAIN.cache_salt, "batch_1-0"), first.identity.seed]


def revision(digest: str, name: str = "base") -> ServedModel:
    return replace(served_model(), base=replace(served_model().base, digest=digest, name=name))


async def test_a_token_is_of_one_revision_while_that_is_served() -> None:
    """Its name may stand for a newer one by now; a model of another name is another model."""
    first = await prepare()
    assert first.token_of is not None
    token = first.token_of([[ChoiceState(index=0, emitted_ids=(7,))]])
    models = ModelSet([served_model()])
    models.put(revision("d" * 64), 1)
    models.see_live({"d" * 64})
    rest = await prepare(models=models, continuation_token=token)
    assert (await prepare(models=models)).identity.model_digest == "d" * 64
    assert rest.specs[0].model_digest == rest.identity.model_digest == served_model().base.digest
    pin = f"base@{served_model().base.digest[:8]}"
    pinned = await prepare(models=models, model=pin, continuation_token=token)
    assert pinned.identity.model_digest == served_model().base.digest
    with pytest.raises(ContinuationStale):
        await prepare(models=models, model=f"base@{'d' * 8}", continuation_token=token)
    stale = TOKENS.make("acme", STATE)
    elsewhere = ModelSet([revision("d" * 64), revision(served_model().base.digest, "other")])
    for served, text in ((None, stale), (elsewhere, token)):
        with pytest.raises(ContinuationStale) as caught:
            await prepare(models=served, continuation_token=text)
        assert caught.value.param == "continuation_token"


THINKING = "{% for m in messages %}{{ m.content }}{% endfor %}{{ '<think>\\n' }}{# </think> #}"


def thinking_models() -> ModelSet:
    """The model, and a newer revision whose template opens reasoning, which new requests get."""
    newer, template = revision("d" * 64), ChatTemplate(THINKING, served_model().tokenizer)
    models = ModelSet([replace(served_model(), default_max_tokens=20)])
    models.put(replace(newer, template=template, chat=chat_format(THINKING), max_input_tokens=8), 1)
    models.see_live({"d" * 64})
    return models


def reasons(prepared: PreparedGeneration) -> bool:
    shape = prepared.renderer.answer.shape
    return shape is not None and shape.is_reasoning


async def test_an_answer_goes_on_by_template_and_parser_of_the_revision_that_it_began_with() -> None:
    first, models = await prepare(CAPPED, CHAT), thinking_models()
    assert first.token_of is not None
    token = first.token_of([[ChoiceState(index=0, emitted_ids=(7,))]])
    rest = await prepare(CAPPED, CHAT, models, continuation_token=token)
    assert (rest.specs[0].prompt_ids, reasons(rest)) == (first.specs[0].prompt_ids, False)
    assert reasons(await prepare(CAPPED, CHAT, models))


async def test_a_stream_is_read_by_the_revision_that_it_began_with() -> None:
    models = thinking_models()
    body = {"model": "base", "messages": [{"role": "user", "content": "x"}]}
    preparer = GenerationPreparer(PreparationTools(catalogue=ModelCatalogue(models, None)), CHAT)
    digest = served_model().base.digest
    newer, older = [await preparer.prepare(dict(body), PLAIN, TraceContext(), name) for name in ("", digest)]
    for prepared in (older, await newer.revised(dict(body), digest)):
        assert (prepared.model_digest, reasons(prepared)) == (digest, False)
        assert prepared.specs[0].prompt_ids == (await prepare(dialect=CHAT)).specs[0].prompt_ids
    assert (newer.model_digest, reasons(newer)) == ("d" * 64, True)
    long = {**body, "messages": [{"role": "user", "content": "word " * 40}]}
    await preparer.prepare(dict(long), PLAIN, TraceContext(), digest)  # the newer one takes no prompt of this length
    with pytest.raises(StreamGone):
        await preparer.prepare(dict(body), PLAIN, TraceContext(), "e" * 64)


async def test_a_stream_and_a_token_of_a_revision_that_is_recorded_and_not_loaded_yet_are_refused_for_now() -> None:
    """Both under an adapter's name, whose base is another revision by now, and under the model's own."""
    digest, is_recorded = served_model().base.digest, asyncio.Event()
    old, newer = (thinking_models().of_digest(one) for one in (digest, "d" * 64))
    assert old is not None
    assert newer is not None
    models = ModelSet([newer])
    models.see_live({"d" * 64})
    first = await prepare()
    assert first.token_of is not None
    token = first.token_of([[ChoiceState(index=0, emitted_ids=(7,))]])

    async def arrive(name: str, digits: str = "") -> None:
        if digits and digest.startswith(digits) and is_recorded.is_set():
            raise DependencyDown("it is recorded, and not loaded yet")

    adapter = Adapter(
        tenant="", name="tuned", base_model_digest="d" * 64, uri="u", digest="f" * 64, rank=2, alpha=4.0,
        target_modules=("q_proj",), num_bytes=1, created_unix_s=1,
    )  # fmt: skip
    adapters: Any = SimpleNamespace(find=AsyncMock(side_effect=lambda t, name: adapter if name == "tuned" else None))
    tools = PreparationTools(catalogue=ModelCatalogue(models, adapters, arrivals=arrive), continuations=TOKENS)
    preparer = GenerationPreparer(tools, COMPLETION)

    async def ask(model: str, begun: str = "", **fields: Any) -> PreparedGeneration:
        return await preparer.prepare({"model": model, "prompt": [5, 6], **fields}, PLAIN, TraceContext(), begun)

    for is_late, refused in ((False, (StreamGone, ContinuationStale)), (True, (DependencyDown,))):
        if is_late:
            is_recorded.set()
        for model, begun, fields in (
            ("base", digest, {}), ("tuned", digest, {}), ("base", "", {"continuation_token": token}),
        ):  # fmt: skip
            with pytest.raises(refused):
                await ask(model, begun, **fields)
    models.put(old, 0)
    assert (await ask("tuned", digest)).model_digest == digest
    assert (await ask("base", continuation_token=token)).model_digest == digest


async def test_a_gateway_without_tokens_takes_none() -> None:
    tools = PreparationTools(catalogue=ModelCatalogue(ModelSet([served_model()]), None))
    body = {"model": "base", "prompt": [5], "continuation_token": "cont_x"}
    with pytest.raises(StratosError) as caught:
        await GenerationPreparer(tools, COMPLETION).prepare(body, PLAIN, TraceContext())
    assert caught.value.code == "unsupported_parameter"


async def test_a_client_stands_in_the_rest_by_the_tokens_of_the_rest() -> None:
    """Its record begins behind the earlier answer, and so do the places in it that a client has seen."""
    first = await prepare()
    assert first.token_of is not None
    token = first.token_of([[ChoiceState(index=0, emitted_ids=(7, 8, 9))]])
    reading = RecordReading(await prepare(continuation_token=token), lambda unix_s: None, Cursor(seen=(2,)))
    buffer = bytearray()
    add_piece(buffer, Piece(0, [11, 12, 13, 14]), 1)
    reading.absorb(StreamRecord(found=Found.LIVE, blocks=[encode_block((0,), 0, bytes(buffer))]))
    assert [chunk.token_ids for chunk in reading.ready] == [[11, 12], [13, 14]]  # which waits for no other
    assert reading.usage == Usage(0, 4, 0)
