"""Every feature of the engine through the client, over an engine in a thread and one in a process of its own."""

from __future__ import annotations

import asyncio
import dataclasses
import re
from array import array
from pathlib import Path
from typing import Any

import pytest

from stratos.common.errors import BadRequest, Internal, QueueTimeout
from stratos.core.kv import KvRange
from stratos.core.requests.embedding import EmbedRequest, PoolingKind
from stratos.core.requests.grammar import GrammarKind, GrammarSpec
from stratos.core.requests.records import ChoiceState, FinishReason, PrefillJob, RequestKey
from stratos.core.requests.watermark import Watermark
from stratos.engine.fake.pooling import fake_embedding
from stratos.engine.fake.runner import fake_generate, fake_kv
from stratos.text.tokenizer import Tokenizer
from tests.support.kv.port_ends import read_kv, write_kv
from tests.support.paths import BASE_MODEL
from tests.support.waiting import eventually
from tests.support.worlds.engine_clients import (
    RAISE_TOKEN,
    Outputs,
    Start,
    ended,
    events,
    expected,
    kv_directory,
    make_adapter,
    make_request,
)
from tests.support.worlds.terms import with_terms

pytestmark = pytest.mark.parametrize("start", ["thread", "thread-overlap", "process-overlap"], indirect=True)
PACKED = {"kv_watermark": 1.0, "admission_counts_budgets": False, "default_output_tokens": 1}


def errors(outputs: Outputs) -> dict[Any, Exception]:
    found: dict[Any, Exception] = {}
    for result in outputs.results:
        found |= {key.request_id: error for key, error in result.errors.items()} | result.prefill_errors
    return found


async def test_log_probabilities_of_prompts_come_with_the_first_token(start: Start) -> None:
    client, outputs = await start({"max_num_batched_tokens": 3})
    prompt = [5, 6, 7, 8, 9, 10, 11]
    await client.add(make_request(prompt, n=2, num_prompt_logprobs=1, num_logprobs=2, max_tokens=3))
    await eventually(lambda: len(ended(outputs)) == 1 and outputs.tokens.keys() == {("r", 0), ("r", 1)})
    (first,) = [r for r in outputs.results if r.prompt_logprobs]
    assert first.started_stats.keys() == first.prompt_logprobs.keys() == {RequestKey("r", 0)}
    entries = first.prompt_logprobs[RequestKey("r", 0)]
    assert [e.sampled.token_id for e in entries] == prompt[1:]
    assert [e.sampled.logprob for e in entries] == [-1.0, -2.0, -3.0, -4.0, -5.0, -6.0]
    assert all(len(e.top) == 1 for e in entries)


async def test_output_obeys_its_grammar_and_a_resume_goes_on_in_it(start: Start) -> None:
    client, outputs = await start(model_path=str(BASE_MODEL), eos_token_ids=(0, 4))
    spec = GrammarSpec(GrammarKind.REGEX, "[a-f]{9}-[0-9]{7}")
    await client.prepare_grammar(spec)
    with pytest.raises(BadRequest) as refused:
        await client.prepare_grammar(GrammarSpec(GrammarKind.REGEX, "(["))
    assert refused.value.http_status == 400
    request = make_request(range(5, 17), grammar=spec, max_tokens=25)
    await client.add(request)
    await eventually(lambda: "r" in ended(outputs))
    assert ended(outputs)["r"] is FinishReason.GRAMMAR
    whole = outputs.tokens["r", 0]
    assert re.fullmatch(spec.text, Tokenizer.load(BASE_MODEL).decode(whole))
    half = ChoiceState(index=1, emitted_ids=tuple(whole[:3]))
    resumed = dataclasses.replace(
        request, key=RequestKey("resumed", 4), choices=(ChoiceState(index=0, finished=True), half)
    )
    outputs.tokens["resumed", 1] = list(whole[:3])
    await client.add(resumed)
    await eventually(lambda: "resumed" in ended(outputs))
    assert outputs.tokens["resumed", 1] == whole
    foul = dataclasses.replace(resumed, key=RequestKey("foul", 0), choices=(ChoiceState(index=0, emitted_ids=(1, 2)),))
    with pytest.raises(BadRequest):
        await client.add(foul)


async def test_an_engine_without_a_tokenizer_refuses_grammars_and_goes_on(start: Start) -> None:
    client, outputs = await start()
    request = make_request([1, 2, 3], grammar=GrammarSpec(GrammarKind.REGEX, "a"))
    with pytest.raises(BadRequest):
        await client.add(request)
    await client.reserve(request)
    await write_kv(client.data_port, kv_directory(), request.key, KvRange(0, 2, 0, 1), bytes(16))
    with pytest.raises(BadRequest):
        await client.commit(request.key)
    assert client.status().blocks.allocated == 0
    await client.add(make_request([1, 2, 3]))
    await eventually(lambda: ended(outputs))


async def test_sampling_parameters_have_their_effect(start: Start) -> None:
    client, outputs = await start(vocab_size=13, eos_token_ids=(3,))
    watermark = Watermark(key=b"k" * 16)
    await client.add(make_request([1, 2], "unique", presence_penalty=1.0, max_tokens=13, ignore_eos=True))
    await client.add(make_request([1, 2], "long", min_tokens=30, max_tokens=30, stop_token_ids=(7,)))
    await client.add(make_request([1, 2], "marked", logit_bias={3: -1.5}, bad_sequences=((1, 2),), watermark=watermark))
    await eventually(lambda: len(ended(outputs)) == 3)
    assert sorted(outputs.tokens["unique", 0]) == list(range(13)), "no token twice"
    assert not {3, 7} & set(outputs.tokens["long", 0][:29]), "no end before min_tokens"


async def test_embeddings_of_both_kinds_and_what_is_wrong_with_them(start: Start) -> None:
    client, outputs = await start({"max_num_batched_tokens": 4})
    tokens = tuple(range(40, 51))
    kinds = {"mean": PoolingKind.MEAN, "last": PoolingKind.LAST}
    for name, kind in kinds.items():
        await client.add_embedding(EmbedRequest(key=RequestKey(name, 0), token_ids=tokens, pooling=kind))
    with pytest.raises(BadRequest):
        await client.add_embedding(EmbedRequest(key=RequestKey("none", 0), token_ids=(), pooling=PoolingKind.MEAN))
    await eventually(lambda: len(outputs.collect(lambda r: r.embeddings)) == 2)
    for output in outputs.collect(lambda r: r.embeddings):
        right = fake_embedding([fake_kv(1, t, p) for p, t in enumerate(tokens)], kinds[output.key.request_id])
        assert list(array("f", output.values)) == pytest.approx(right, abs=1e-6)
    await client.add_embedding(EmbedRequest(key=RequestKey("gone", 0), token_ids=tokens, pooling=PoolingKind.MEAN))
    client.abort(RequestKey("gone", 0))
    assert await client.match((1, 2), "", b"") == 0  # the abort has run
    await eventually(lambda: client.status().blocks.allocated == client.status().blocks.fenced == 0)
    assert not errors(outputs)


async def test_a_model_that_only_embeds_says_so(start: Start) -> None:
    client, _ = await start(can_generate=False)
    assert not client.info.can_generate
    with pytest.raises(BadRequest) as refused:
        await client.add(make_request([1, 2]))
    assert (refused.value.code, refused.value.param) == ("unsupported_operation", "model")


async def test_adapters_change_tokens_and_keep_their_own_prefixes(start: Start) -> None:
    client, outputs = await start(block_size=4)
    prompt = list(range(20, 33))
    for name in "ab":
        await client.load_adapter(make_adapter(name))
        assert await client.pin_adapter(name * 64)
        request = with_terms(make_request(prompt, name), adapter_digest=name * 64)
        await client.add(request)
    await eventually(lambda: len(ended(outputs)) == 2)
    for name in "ab":
        right = fake_generate(prompt, 8, prefill_weight=1, decode_weight=1, adapter_digest=name * 64)
        assert outputs.tokens[name, 0] == right
        assert await client.match(tuple(prompt), name * 64, b"") == 12
        await client.unpin_adapter(name * 64)
    assert await client.match(tuple(prompt), "", b"") == 0
    assert set(client.status().resident_adapters) == {"a" * 64, "b" * 64}
    with pytest.raises((ValueError, RuntimeError)):
        await client.load_adapter(dataclasses.replace(make_adapter("c"), shapes={}))


async def test_classes_and_deadlines_are_kept(start: Start) -> None:
    client, outputs = await start({"max_num_seqs": 1}, step_s=0.002)
    await client.add(make_request([1, 2], "first", max_tokens=4000))
    await eventually(lambda: outputs.tokens)
    low = with_terms(make_request([3, 4], "low", max_tokens=1), priority_class=2)
    await client.add(low)
    await client.add(with_terms(make_request([5, 6], "high", max_tokens=1), priority_class=0))
    await client.add(with_terms(make_request([7, 8], "late"), deadline_s=0.001))
    await eventually(lambda: errors(outputs))
    client.abort(RequestKey("first", 0))
    await eventually(lambda: len(ended(outputs)) == 2)
    assert list(ended(outputs)) == ["high", "low"]
    assert {name: type(error) for name, error in errors(outputs).items()} == {"late": QueueTimeout}


async def test_preempted_sequences_come_back_from_host_memory_and_the_status_tells(start: Start) -> None:
    scheduler = {"swap_costs": False, **PACKED}
    client, outputs = await start(scheduler, num_blocks=8, block_size=4, num_host_blocks=32, step_s=0.001)
    prompts = {f"r{i}": [i * 5 + j for j in range(6)] for i in range(4)}
    for name, prompt in prompts.items():
        await client.add(make_request(prompt, name, max_tokens=16))
    await eventually(lambda: len(ended(outputs)) == 4)
    assert outputs.tokens == {(name, 0): expected(prompt, 16) for name, prompt in prompts.items()}
    await eventually(lambda: client.status().blocks.allocated == client.status().blocks.fenced == 0)
    status = client.status()
    assert status.host.num_swapped_out == status.host.num_restored > 0
    assert status.num_preemptions >= status.host.num_swapped_out
    assert status.host.slots.total == 32
    assert status.host.slots.free + status.host.slots.cached == 32


async def test_choices_and_requests_end_in_any_phase(start: Start) -> None:
    scheduler = {"max_num_seqs": 3, "max_num_batched_tokens": 8, "default_output_tokens": 8}
    client, outputs = await start(scheduler, step_s=0.003, num_blocks=1024)
    await client.add(make_request(range(4000), "prefill", max_tokens=3000))  # its prompt takes 500 steps
    client.abort(RequestKey("prefill", 0))
    await client.add(make_request(range(9), "choices", n=3, max_tokens=3000))
    await eventually(lambda: outputs.tokens.keys() >= {("choices", i) for i in range(3)})
    await client.add(make_request(range(30), "queued", max_tokens=3000))
    client.abort(RequestKey("queued", 0))
    client.abort(RequestKey("choices", 0), (0, 2))
    await eventually(lambda: client.status().num_running == 1)
    await client.reserve(make_request(range(9), "reserved", n=2))
    client.abort(RequestKey("reserved", 0), (0,))
    client.abort(RequestKey("reserved", 0), (1,))
    with pytest.raises(KeyError):
        await client.commit(RequestKey("reserved", 0))
    lengths = {name: len(tokens) for name, tokens in outputs.tokens.items()}
    await eventually(lambda: len(outputs.tokens["choices", 1]) > lengths["choices", 1] + 20)
    assert len(outputs.tokens["choices", 0]) <= lengths["choices", 0] + 2
    client.abort(RequestKey("choices", 0))
    client.abort(RequestKey("unknown", 0))
    await eventually(lambda: client.status().blocks.allocated == client.status().blocks.fenced == 0)
    assert outputs.tokens.keys() == {("choices", i) for i in range(3)}
    assert client.status().blocks.reserved == 0


async def test_a_job_without_compute_serves_what_is_there_and_a_bad_one_fails_alone(start: Start) -> None:
    client, outputs = await start(block_size=4)
    await client.add(make_request(range(10), max_tokens=1))
    await eventually(lambda: ended(outputs))
    await client.add_prefill(PrefillJob(leg="cached", token_ids=tuple(range(10)), compute=False))
    await eventually(lambda: events(outputs))
    await client.grant("cached")
    await eventually(lambda: len(events(outputs)) == 2)
    assert [event.num_tokens for event in events(outputs)] == [8, 8]
    payload = array("q", await read_kv(client.data_port, kv_directory(), "cached", KvRange(0, 8, 0, 1)))
    assert payload.tolist() == [fake_kv(1, t, t) for t in range(8)]
    await client.release_prefill("cached")
    await client.add_prefill(PrefillJob(leg="bad", token_ids=(1, RAISE_TOKEN, 3)))
    await eventually(lambda: len(events(outputs)) == 3)
    await client.grant("bad")
    await eventually(lambda: errors(outputs))
    assert isinstance(errors(outputs)["bad"], Internal)
    assert client.status().num_prefill_jobs == 0


async def test_long_work_beside_the_steps_is_no_hang(start: Start, tmp_path: Path) -> None:
    """Loading an adapter takes seconds; the engine is idle during that time, and answers."""
    client, outputs = await start()
    slow = dataclasses.replace(make_adapter("5"), path=tmp_path / "comes later")
    loading = asyncio.create_task(client.load_adapter(slow))
    await client.add(make_request([1, 2, 3], max_tokens=2))
    await eventually(lambda: ended(outputs))
    await eventually(lambda: not client.status().is_computing)
    assert not loading.done()
    slow.path.touch()
    await loading
    assert client.status().resident_adapters == ("5" * 64,)
