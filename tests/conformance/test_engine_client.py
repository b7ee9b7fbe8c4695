"""The engine client's contract, over an engine in a thread and one in a process of its own."""

from __future__ import annotations

import asyncio
import threading
from array import array

import pytest

from stratos.common.errors import (
    BadRequest,
    Busy,
    ContextLengthExceeded,
    Draining,
    Internal,
    Overloaded,
    WorkerLost,
)
from stratos.core.kv import KvRange
from stratos.core.requests.embedding import EmbedRequest, PoolingKind
from stratos.core.requests.records import PrefillJob, RequestKey
from stratos.engine.contract.results import PrefillEventKind
from stratos.engine.fake.pooling import fake_embedding
from stratos.engine.fake.runner import FINISHED_EARLY, KV_BYTES, fake_generate, fake_kv
from stratos.worker.engine_client.base import EngineClient
from tests.support.kv.port_ends import move_kv, read_kv, write_kv
from tests.support.waiting import eventually
from tests.support.worlds.engine_clients import (
    Start,
    ended,
    events,
    expected,
    kv_directory,
    make_adapter,
    make_request,
)


async def test_requests_run_and_their_tokens_come_in_order(start: Start) -> None:
    client, outputs = await start()
    prompts = {f"r{i}": [i, i + 5, 7] for i in range(5)}
    for name, prompt in prompts.items():
        await client.add(make_request(prompt, name, n=2, num_logprobs=1))
    await eventually(lambda: len(outputs.tokens) == 10 and all(len(t) == 8 for t in outputs.tokens.values()))
    assert outputs.tokens == {(name, i): expected(prompt) for name, prompt in prompts.items() for i in (0, 1)}
    first = outputs.results[0].outputs[0]
    assert first.logprobs[0].sampled.token_id == first.token_ids[0]
    (stats,) = {s.num_prompt_tokens for s in outputs.collect(lambda r: r.started_stats.values())}
    assert stats == 3
    await eventually(lambda: client.status().blocks.allocated == 0)


async def test_calls_take_effect_in_the_order_in_which_they_are_made(start: Start) -> None:
    client, outputs = await start({"max_num_seqs": 1}, step_s=0.01)
    await client.add(make_request([1], "runs", max_tokens=4000))  # so that what waits gets no token before its abort
    await eventually(lambda: client.status().num_running == 1)
    for attempt in range(10):
        await client.add(make_request([1, 2, 3], "gone", max_tokens=500))
        client.abort(RequestKey("gone", 0))
        await client.add(make_request([attempt], f"next{attempt}", max_tokens=1))
    client.abort(RequestKey("runs", 0))
    await eventually(lambda: len(ended(outputs)) == 10)
    await eventually(lambda: client.status().num_running == 0)
    assert ("gone", 0) not in outputs.tokens
    with pytest.raises(BadRequest):
        await asyncio.gather(*(client.add(make_request([1, 2], "twice", max_tokens=900)) for _ in range(2)))


async def test_errors_arrive_as_what_they_are(start: Start) -> None:
    client, outputs = await start({"max_num_waiting": 1, "max_num_seqs": 1}, poison_token=666, step_s=0.01)
    with pytest.raises(ContextLengthExceeded) as too_long:
        await client.add(make_request(range(5000)))
    assert too_long.value.http_status == 400
    await client.add(make_request([1], "runs", max_tokens=2000))
    await eventually(lambda: client.status().num_running == 1)
    await client.add(make_request([1], "waits"))
    with pytest.raises(Overloaded) as full:
        await client.add(make_request([1], "refused"))
    assert full.value.after_s == 1.0
    with pytest.raises(BadRequest) as twice:
        await client.add(make_request([1], "runs"))
    assert twice.value.param == "request_id"
    for call in (
        client.commit(RequestKey("x", 0)),
        client.grant("x"),
        client.data_port.gather("shm", "x", KvRange(0, 1, 0, 1)),
    ):
        with pytest.raises(KeyError):
            await call
    client.abort(RequestKey("runs", 0))
    client.abort(RequestKey("waits", 0))
    await client.add(make_request([666], "poisoned"))
    await eventually(lambda: outputs.collect(lambda r: r.errors))
    (error,) = outputs.collect(lambda r: r.errors.values())
    assert isinstance(error, Internal)
    assert error.message == FINISHED_EARLY


async def test_changes_of_the_prefix_cache_are_told_by_number_or_whole(start: Start) -> None:
    client, outputs = await start({"max_cache_changes": 16}, block_size=4)
    await client.add(make_request(range(20), "first"))
    await eventually(lambda: len(ended(outputs)) == 1)
    whole = await client.cache_changes(None)
    assert whole.is_dump
    assert len(whole.stored) == whole.last >= 5
    await client.add(make_request(range(50, 60), "second"))
    await eventually(lambda: len(ended(outputs)) == 2)
    more = await client.cache_changes(whole.last)
    assert (more.after, more.is_dump, more.removed) == (whole.last, False, ())
    assert not set(more.stored) & set(whole.stored)
    assert set((await client.cache_changes(None)).stored) == {*whole.stored, *more.stored}
    assert (await client.cache_changes(more.last + 1)).is_dump


@pytest.mark.parametrize("n", [1, 2])
async def test_a_hand_off_moves_the_kv(start: Start, n: int) -> None:
    source, computed = await start({"max_num_batched_tokens": 9}, worker_weight=5, block_size=8)
    target, outputs = await start(worker_weight=2, block_size=4)
    request = make_request(range(100, 130), n=n)
    await source.add_prefill(PrefillJob(leg="leg", token_ids=request.prompt_ids[:-1]))
    await eventually(lambda: events(computed))
    assert await target.match(request.prompt_ids, "", b"") == 0
    reservation = await target.reserve(request)
    assert reservation is not None
    assert (reservation.num_skip_tokens, reservation.num_tokens) == (0, 29)
    await source.grant("leg")
    await eventually(lambda: events(computed)[-1].kind is PrefillEventKind.DONE)
    for begin, end in ((0, 10), (10, 29)):
        await move_kv(source.data_port, target.data_port, "leg", request.key, KvRange(begin, end, 0, 1))
    with pytest.raises(ValueError, match="payload"):
        await write_kv(target.data_port, kv_directory(), request.key, KvRange(0, 4, 0, 1), bytes(31))
    await target.commit(request.key)
    await source.release_prefill("leg")
    await eventually(lambda: ended(outputs) and all(len(t) == 8 for t in outputs.tokens.values()))
    right = fake_generate(request.prompt_ids, 8, prefill_weight=5, decode_weight=2)
    assert outputs.tokens == {("r", i): right for i in range(n)}
    assert await target.match(request.prompt_ids, "", b"") == 28
    assert await source.match((*request.prompt_ids, 1), "", b"") == 24
    assert source.status().num_prefill_jobs == 0


async def test_no_room_is_no_error(start: Start) -> None:
    client, _ = await start(num_blocks=10)
    assert await client.reserve(make_request(range(80), "a")) is not None
    assert await client.reserve(make_request(range(80), "b")) is None


async def test_large_payloads_keep_their_bytes_after_the_job_is_gone(start: Start) -> None:
    num_tokens = 40_000
    sizes = {"num_blocks": 700, "block_size": 64, "max_model_len": 50_000}
    client, outputs = await start({"max_num_batched_tokens": 50_000}, **sizes)
    tokens = tuple(i * 7 % 4000 for i in range(num_tokens))
    await client.add_prefill(PrefillJob(leg="leg", token_ids=tokens))
    await eventually(lambda: events(outputs))
    await client.grant("leg")
    await eventually(lambda: events(outputs)[-1].kind is PrefillEventKind.DONE)
    cuts = [(0, num_tokens), (5, 6), (num_tokens // 2, num_tokens)]
    port, folder = client.data_port, kv_directory()
    payloads = [await read_kv(port, folder, "leg", KvRange(begin, end, 0, 1)) for begin, end in cuts]
    await client.release_prefill("leg")
    await client.add(make_request(range(2000), max_tokens=1))
    await eventually(lambda: ended(outputs))
    for (begin, end), payload in zip(cuts, payloads, strict=True):
        assert array("q", payload).tolist() == [fake_kv(1, tokens[p], p) for p in range(begin, end)]


async def test_adapters_are_loaded_pinned_and_shown(start: Start) -> None:
    client, outputs = await start()
    files = make_adapter("a")
    digest = files.digest
    assert not await client.pin_adapter(digest)
    await client.load_adapter(files)
    assert client.status().resident_adapters == (digest,)
    assert await client.pin_adapter(digest)
    await client.unpin_adapter(digest)
    assert await client.forget_blocks([b"x" * 32]) == 0
    assert not outputs.results


async def test_known_tokens_and_weights_are_asked_for_beside_steps(start: Start) -> None:
    client, _ = await start(step_s=0.01)
    digest = await client.probe()
    await client.add(make_request([1], "runs", max_tokens=4000))
    await eventually(lambda: client.status().num_running == 1)
    assert await client.probe() == digest
    checks = [await client.check_weights(1 << 20) for _ in range(2)]
    assert [(check.num_bytes, check.num_passes, check.damaged) for check in checks] == [(KV_BYTES, 1, ())] * 2


async def test_inputs_are_embedded(start: Start) -> None:
    client, outputs = await start()
    tokens = (5, 6, 7)
    await client.add_embedding(EmbedRequest(key=RequestKey("e", 0), token_ids=tokens, pooling=PoolingKind.MEAN))
    await eventually(lambda: outputs.collect(lambda r: r.embeddings))
    (output,) = outputs.collect(lambda r: r.embeddings)
    right = fake_embedding([fake_kv(1, t, p) for p, t in enumerate(tokens)], PoolingKind.MEAN)
    assert list(array("f", output.values)) == pytest.approx(right, abs=1e-6)


async def test_any_thread_sees_the_step_counter_move_while_steps_run(start: Start) -> None:
    client, _ = await start({"max_num_batched_tokens": 1}, step_s=0.001)
    await client.add_prefill(PrefillJob(leg="leg", token_ids=tuple(range(3000))))  # steps without any output
    await client.grant("leg") if await _ready(client) else None
    seen: list[int] = []
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(0.005):
            status = client.status()
            status.blocks.check_law()
            if not seen or status.step != seen[-1]:
                seen.append(status.step)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        await eventually(lambda: len(seen) > 5)
    finally:
        is_over.set()
        watcher.join()
    assert seen == sorted(seen)
    assert client.status().is_computing


async def _ready(client: EngineClient) -> bool:
    await eventually(lambda: client.status().blocks.allocated > 0)
    return True


async def test_a_step_loop_that_dies_tells_why_and_answers_nobody_any_more(start: Start) -> None:
    client, outputs = await start(fail_at_step=3)
    waiting = asyncio.create_task(client.wait_failed())
    await client.add(make_request([1, 2, 3]))
    with pytest.raises(RuntimeError, match=FINISHED_EARLY):
        await waiting
    with pytest.raises(WorkerLost):
        await client.add(make_request([1, 2, 3], "late"))
    client.abort(RequestKey("r", 0))
    assert not ended(outputs)


async def test_close_ends_open_requests_and_waiting_for_a_failure(start: Start) -> None:
    client, outputs = await start(step_s=0.01)
    waiting = asyncio.create_task(client.wait_failed())
    await client.add(make_request([1, 2, 3], max_tokens=4000))
    await eventually(lambda: outputs.tokens)
    await client.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    with pytest.raises(WorkerLost):
        await client.match((1, 2), "", b"")
    await client.close()


async def test_an_engine_that_slept_goes_on_as_before(start: Start) -> None:
    client, outputs = await start({"max_cache_changes": 64}, block_size=4, num_host_blocks=8)
    adapter = make_adapter("kept")
    await client.load_adapter(adapter)
    await client.add(make_request(range(20), "before"))
    await eventually(lambda: len(ended(outputs)) == 1)
    told = await client.cache_changes(None)
    assert await client.sleep() == client.info.num_blocks * 4 * KV_BYTES
    assert await client.sleep() == 0, "it sleeps already"
    gone = await client.cache_changes(told.last)
    assert (set(gone.removed), gone.stored) == (set(told.stored), ())
    assert await client.match(tuple(range(20)), "", b"") == 0
    for refused in (client.add(make_request([1], "early")), client.add_prefill(PrefillJob(leg="leg", token_ids=(1,)))):
        with pytest.raises(Draining):
            await refused
    await client.wake()
    await client.wake()
    await client.add(make_request(range(20), "after"))
    await eventually(lambda: len(ended(outputs)) == 2)
    assert outputs.tokens["after", 0] == outputs.tokens["before", 0] == expected(range(20))
    assert client.status().resident_adapters == (adapter.digest,)


async def test_an_engine_with_work_does_not_sleep(start: Start) -> None:
    client, outputs = await start(step_s=0.01)
    await client.add(make_request([1], "runs", max_tokens=500))
    await eventually(lambda: client.status().num_running == 1)
    with pytest.raises(Busy):
        await client.sleep()
    reserved = make_request(range(20), "reserved")
    client.abort(RequestKey("runs", 0))
    assert await client.reserve(reserved) is not None
    await eventually(lambda: client.status().num_running == 0)
    with pytest.raises(Busy):
        await client.sleep()
    client.abort(reserved.key)
    await client.add(make_request([1, 2], "next"))
    await eventually(lambda: ("next", 0) in outputs.tokens and client.status().blocks.reserved == 0)
    await eventually(lambda: client.status().num_running == 0)
    assert await client.sleep() > 0
