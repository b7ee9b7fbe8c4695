"""Prefill in one worker, decode in another: hand-computed tokens prove which worker computed what."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stratos.api.worker.v1 import decode_pb2
from stratos.core.placement import WorkerRole
from stratos.engine.fake.runner import fake_generate
from tests.support.waiting import eventually
from tests.support.worlds.worker_world import DECODE_WEIGHT, PREFILL_WEIGHT, World, open_world

PROMPT = [(7 * i) % 4096 for i in range(100)]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(tmp_path) as opened:
        yield opened


def expected(prompt: list[int], count: int, num_prefilled: int | None = None) -> list[int]:
    return fake_generate(
        prompt, count, prefill_weight=PREFILL_WEIGHT, decode_weight=DECODE_WEIGHT, num_prefilled=num_prefilled
    )


@pytest.mark.parametrize("transport", ["shm", "gloo"])
async def test_p_prefills_and_d_decodes(world: World, transport: str) -> None:
    prefill = await world.start(WorkerRole.PREFILL, transport={"names": [transport]})
    decode = await world.start(WorkerRole.DECODE, transport={"names": [transport]})
    gateway = await world.gateway(decode)
    stream = await (await gateway.submit(PROMPT, prefill=(prefill,), max_tokens=6)).over()
    assert stream.error is None
    assert stream.tokens[0] == expected(PROMPT, 6)
    receipt = stream.receipt
    assert receipt.prefill_path == decode_pb2.PREFILL_PATH_HANDOFF
    assert (receipt.num_transferred_tokens, receipt.num_recomputed_tokens) == (len(PROMPT) - 1, 1)
    assert receipt.prefill_worker_id == "prefill-0"
    assert receipt.transfer_ns > 0
    assert prefill.metric("stratos_kv_transfer_bytes_total", direction="sent", transport=transport) == 8 * 99
    assert decode.metric("stratos_kv_handoffs_total", side="receiver", outcome="committed") == 1
    await prefill.wait_baseline()
    await decode.wait_baseline()


@pytest.mark.parametrize("transport", ["shm", "gloo"])
async def test_a_pair_without_hand_offs_gives_everything_back_and_opens_again(
    world: World, tmp_path: Path, transport: str
) -> None:
    transports = {"names": [transport], "idle_pair_s": 0.2}
    prefill = await world.start(WorkerRole.PREFILL, transport=transports)
    decode = await world.start(WorkerRole.DECODE, transport=transports)
    gateway = await world.gateway(decode)
    ledger, fds = decode.process.opened.context.transports.ledger, list[int]()
    sender = prefill.process.opened.context.transports.sender(transport)
    for number in range(3):
        prompt = [number, *PROMPT]
        stream = await gateway.submit(prompt, request_id=f"r{number}", prefill=(prefill,), max_tokens=6)
        await stream.over()
        assert stream.tokens[0] == expected(prompt, 6)
        assert stream.receipt.prefill_path == decode_pb2.PREFILL_PATH_HANDOFF
        await eventually(lambda: ledger().total == 0, "the end of the pair")
        await eventually(lambda: not sender.num_pairs, "the end of the pair at its source")
        await eventually(lambda: not mapped_rings(tmp_path), "the end of its memory at both ends")
        fds.append(num_open_fds())
    await eventually(lambda: num_open_fds() <= fds[0], "descriptors as after the first hand-off")


def mapped_rings(folder: Path) -> list[str]:
    """Staging memory that the workers of this process have, unlinked files included."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [line for line in lines if str(folder) in line and ".ring" in line]


def num_open_fds() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_control_a_local_prefill_gives_other_tokens(world: World) -> None:
    decode = await world.start(WorkerRole.DECODE)
    gateway = await world.gateway(decode)
    stream = await (await gateway.submit(PROMPT, max_tokens=6)).over()
    assert stream.tokens[0] == expected(PROMPT, 6, num_prefilled=0)
    assert stream.tokens[0] != expected(PROMPT, 6)
    assert stream.receipt.prefill_path == decode_pb2.PREFILL_PATH_LOCAL_NO_ENDPOINT
    assert stream.receipt.num_recomputed_tokens == len(PROMPT)


async def test_long_prompt_travels_in_chunks_and_small_frames(world: World) -> None:
    prompt = [(11 * i + 3) % 4096 for i in range(700)]
    prefill = await world.start(WorkerRole.PREFILL, fake={"token_s": 0.0001})
    decode = await world.start(WorkerRole.DECODE, transport={"staging": {"slot_bytes": 4096, "slots_per_pair": 2}})
    gateway = await world.gateway(decode)
    stream = await (await gateway.submit(prompt, prefill=(prefill,))).over()
    assert stream.tokens[0] == expected(prompt, 4)
    assert stream.receipt.num_transferred_tokens == 699


async def test_cached_prefix_is_not_sent_again(world: World) -> None:
    prefill, decode = await world.start(WorkerRole.PREFILL), await world.start(WorkerRole.DECODE)
    gateway = await world.gateway(decode)
    await (await gateway.submit(PROMPT, prefill=(prefill,), request_id="a")).over()
    longer = PROMPT[:96] + [(5 * i + 1) % 4096 for i in range(60)]
    stream = await (await gateway.submit(longer, prefill=(prefill,), request_id="b")).over()
    assert stream.tokens[0] == expected(longer, 4)
    assert stream.receipt.num_cached_tokens == 96
    assert stream.receipt.num_transferred_tokens == 155 - 96


async def test_short_uncached_tail_is_computed_here(world: World) -> None:
    prefill, decode = await world.start(WorkerRole.PREFILL), await world.start(WorkerRole.DECODE)
    gateway = await world.gateway(decode)
    stream = await (await gateway.submit(PROMPT[:17], prefill=(prefill,))).over()
    assert stream.receipt.prefill_path == decode_pb2.PREFILL_PATH_LOCAL_SHORT_TAIL
    assert stream.tokens[0] == expected(PROMPT[:17], 4, num_prefilled=0)
    assert decode.metric("stratos_local_prefills_total", reason="local_short_tail") == 1


async def test_several_choices_share_one_hand_off(world: World) -> None:
    prefill, decode = await world.start(WorkerRole.PREFILL), await world.start(WorkerRole.DECODE)
    gateway = await world.gateway(decode)
    choices = [decode_pb2.ChoiceState(index=i) for i in range(3)]
    stream = await (await gateway.submit(PROMPT, prefill=(prefill,), choices=choices)).over()
    assert stream.tokens == {i: expected(PROMPT, 4) for i in range(3)}
    assert decode.metric("stratos_kv_handoffs_total", side="receiver", outcome="committed") == 1


async def test_many_hand_offs_at_once(world: World) -> None:
    patient = {"progress_timeout_s": 60.0}  # how long a busy machine lets a source wait is not asked here
    prefill = await world.start(WorkerRole.PREFILL)
    decode = await world.start(WorkerRole.DECODE, fake={"num_blocks": 512}, handoff=patient)
    gateway = await world.gateway(decode)
    prompts = [[(3 * i + 17 * n) % 4096 for i in range(60 + n)] for n in range(24)]
    streams = [await gateway.submit(p, prefill=(prefill,), request_id=f"r{n}") for n, p in enumerate(prompts)]
    for stream, prompt in zip(streams, prompts, strict=True):
        assert (await stream.over()).error is None
        assert stream.tokens[0] == expected(prompt, 4)
        assert stream.receipt.prefill_path == decode_pb2.PREFILL_PATH_HANDOFF
    await prefill.wait_baseline()
    await decode.wait_baseline()


async def test_resumed_request_goes_on_where_it_was(world: World) -> None:
    prefill, decode = await world.start(WorkerRole.PREFILL), await world.start(WorkerRole.DECODE)
    gateway = await world.gateway(decode)
    whole = expected(PROMPT, 8)
    choices = [decode_pb2.ChoiceState(index=0, emitted_ids=whole[:3])]
    stream = await (await gateway.submit(PROMPT, prefill=(prefill,), choices=choices, max_tokens=8, attempt=1)).over()
    resumed = [*PROMPT, *whole[:3]]
    assert stream.tokens[0][3:] == expected(resumed, 5), "what it emitted came by hand-off, too, but its last token"


async def test_decode_worker_is_a_source_of_what_it_has(world: World) -> None:
    first = await world.start(WorkerRole.DECODE, worker_id="decode-a", fake={"worker_weight": 9})
    second = await world.start(WorkerRole.DECODE, worker_id="decode-b")
    await (await (await world.gateway(first)).submit(PROMPT)).over()
    prompt = PROMPT[:97]
    stream = await (await (await world.gateway(second)).submit(prompt, prefill=(first,))).over()
    tokens = fake_generate(prompt, 4, prefill_weight=9, decode_weight=DECODE_WEIGHT)
    assert stream.tokens[0] == tokens
    assert stream.receipt.num_transferred_tokens == 96
