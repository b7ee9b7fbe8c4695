"""Models with recurrent states: the bits of running alone, whatever is cached, preempted or handed over."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stratos.common.errors import InvalidCheckpoint
from stratos.core.kv import KvRange
from stratos.core.requests.records import EngineRequest, PrefillJob
from stratos.engine.core import EngineCore
from stratos.engine.settings import DiskTierConfig, SpeculationConfig
from stratos.engine.speculation.making import make_proposer
from stratos.kv_transfer.framing import Coverage, plan_frames, plan_state_frames
from tests.conformance.test_exact_engine import random_requests
from tests.support.reference.native_kernels import NATIVE_SETS
from tests.support.reference.tiny_models import FAMILIES, save_tiny
from tests.support.worlds.core_driver import Outcomes, make_core, make_request, run
from tests.support.worlds.engine_settings import scheduler_config
from tests.support.worlds.plan_driver import BLOCK_SIZE

pytestmark = pytest.mark.skipif(not NATIVE_SETS, reason="layers with a state need the C++ kernels")
NUM_BLOCKS = 30
SLOT_BYTES = 20_000
"""Of a frame: two of the three states fit."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Qwen3.5."""
    path = tmp_path_factory.mktemp("model")
    prefix, changes = FAMILIES["qwen3.5"]
    save_tiny(path, prefix, **changes)
    return path


def alone(model: Path, requests: list[EngineRequest], **runner: Any) -> dict[Any, Any]:
    """Outcomes of each request by itself, without a prefix cache."""
    core, outcomes = make_core(model, runner=runner, prefix_cache=False), Outcomes()
    for request in requests:
        outcomes.choices |= run(core, request).choices
    return outcomes.choices


@pytest.mark.parametrize(("seed", "dtype"), [(0, "float32"), (1, "bfloat16"), (2, "bfloat16"), (3, "float32")])
def test_any_schedule_gives_the_bits_of_running_alone(model: Path, seed: int, dtype: str) -> None:
    source = random.Random(seed)
    requests, snapshot_blocks = random_requests(source), source.choice([1, 2, 3])
    expected = alone(model, requests, dtype=dtype)
    core = make_core(
        model,
        kv_pool_bytes=NUM_BLOCKS * BLOCK_SIZE * (256 if dtype == "float32" else 128),
        runner={"dtype": dtype, "state_slots": source.randrange(14, 24)},
        max_num_seqs=source.randrange(4, 9),
        max_num_batched_tokens=source.randrange(9, 50),
        snapshot_blocks=snapshot_blocks,
        kv_watermark=1.0,
        admission_counts_budgets=False,
        default_output_tokens=1,
    )
    outcomes = run(core, *requests)
    assert not outcomes.errors
    assert core.status().num_preemptions > 0
    assert outcomes.choices == expected


def test_a_cached_prefix_ends_at_a_snapshot_and_goes_on_with_its_bits(model: Path) -> None:
    prompt = [(i * 37 + 11) % 90 + 5 for i in range(31)]
    requests = {
        "first": (prompt, 0),
        "same": (prompt, 28),  # the last full block of the prompt without its last token
        "longer": ([*prompt[:29], *range(20, 40)], 28),
        "early": ([*prompt[:27], *range(60, 70)], 24),  # every third block
        "short": (prompt[:11], 0),
    }
    made = {name: make_request(ids, name, max_tokens=6, num_logprobs=1) for name, (ids, _) in requests.items()}
    expected = alone(model, list(made.values()))
    core = make_core(model, snapshot_blocks=3, max_num_batched_tokens=10)
    for name, (ids, num_cached) in requests.items():
        assert core.match(tuple(ids), "", b"") == num_cached, name
        assert run(core, made[name]).choices == {(name, 0): expected[name, 0]}
    core.forget_tenant("")
    assert core.match(tuple(prompt), "", b"") == 0


def test_snapshots_make_room_for_sequences(model: Path) -> None:
    core = make_core(model, runner={"state_slots": 4}, snapshot_blocks=1)
    requests = [make_request([7 + i, *range(9, 30)], f"r{i}", max_tokens=5, ignore_eos=True) for i in range(5)]
    outcomes = run(core, *requests)
    assert not outcomes.errors
    assert outcomes.choices == alone(model, requests)
    assert core.status().states.num_slots == 4


def hand_over(source: EngineCore, target: EngineCore, request: EngineRequest) -> None:
    """Compute a prompt in one engine and bring its KV and its state to another."""
    prompt = request.prompt_ids
    source.add_prefill(PrefillJob(leg=request.key.request_id, token_ids=prompt[:-1], terms=request.terms))
    source.step()
    reservation = target.reserve(request)
    assert reservation is not None
    source.grant(request.key.request_id)
    while source.has_work:
        source.step()
    geometry, begin, end = source.info.geometry, reservation.num_skip_tokens, reservation.num_tokens
    frames: list[KvRange] = []
    if begin < end:
        frames = plan_frames(begin, end, geometry, SLOT_BYTES) + plan_state_frames(end, geometry, SLOT_BYTES)
    for frame in frames:
        payload = source.gather(request.key.request_id, frame)
        assert payload.nbytes == geometry.num_bytes(frame)
        target.scatter(request.key, frame, payload)
    source.release_prefill(request.key.request_id)
    source.verify()


def finished(core: EngineCore, *requests: EngineRequest) -> dict[Any, Any]:
    """Outcomes of what is in an engine, and of ``requests``."""
    return run(core, *requests).choices


@pytest.mark.parametrize("n", [1, 3])
def test_a_hand_off_carries_the_state(model: Path, n: int) -> None:
    prompt = [(i * 31 + 7) % 90 + 5 for i in range(38)]
    request = make_request(prompt, "r", n=n, seed=3, temperature=1.0, max_tokens=9, ignore_eos=True, num_logprobs=1)
    expected = alone(model, [request])
    source, target = make_core(model, max_num_batched_tokens=9), make_core(model)
    hand_over(source, target, request)
    target.commit(request.key)
    assert finished(target) == expected
    assert target.status().states.num_available == target.status().states.num_slots


def test_a_hand_off_of_which_a_part_came_computes_the_rest_again(model: Path) -> None:
    prompt = [(i * 31 + 7) % 90 + 5 for i in range(38)]
    request = make_request(prompt, "r", max_tokens=9, ignore_eos=True, num_logprobs=1)
    expected = alone(model, [request])
    source, target = make_core(model), make_core(model)
    hand_over(source, target, request)
    assert target.commit_part(request.key, 20)
    assert finished(target) == expected


def test_a_state_of_another_prompt_shows(model: Path) -> None:
    """The control: if this passed, the parity above would prove nothing about the state that moved."""
    prompt = [(i * 31 + 7) % 90 + 5 for i in range(38)]
    request = make_request(prompt, "r", max_tokens=9, ignore_eos=True, num_logprobs=1)
    other = make_request(prompt[::-1], "other", max_tokens=9, ignore_eos=True)
    source, target = make_core(model), make_core(model)
    for wanted in (request, other):
        hand_over(source, target, wanted)
    geometry, end = source.info.geometry, len(prompt) - 1
    source.add_prefill(PrefillJob(leg="wrong", token_ids=tuple(prompt[::-1][:-1]), terms=request.terms))
    source.step()
    source.grant("wrong")
    while source.has_work:
        source.step()
    frame = plan_state_frames(end, geometry, 1 << 20)[0]
    target.scatter(request.key, frame, source.gather("wrong", frame))
    target.commit(request.key)
    target.abort(other.key)
    assert finished(target) != alone(model, [request])


def test_a_step_that_raises_after_it_wrote_states_is_computed_again(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = [make_request([5 + i, *range(9, 30)], f"r{i}", max_tokens=8, ignore_eos=True) for i in range(3)]
    expected = alone(model, requests)
    core, num_calls = make_core(model, max_num_batched_tokens=12), 0
    sample = core.runner.sample

    def failing(*arguments: Any) -> None:
        nonlocal num_calls
        num_calls += 1
        if num_calls % 4 == 0:
            raise RuntimeError("injected")
        sample(*arguments)

    monkeypatch.setattr(core.runner, "sample", failing)
    outcomes = run(core, *requests)
    assert not outcomes.errors
    assert outcomes.choices == expected


def test_a_stream_whose_worker_was_lost_goes_on_elsewhere_with_its_bits(model: Path) -> None:
    prompt, params = [(i * 29 + 3) % 90 + 5 for i in range(26)], {"max_tokens": 12, "ignore_eos": True}
    whole = alone(model, [make_request(prompt, **params)])["r", 0]
    resumed = make_request(prompt, emitted=whole.ids[:5], **params)
    other, source, target = make_core(model, max_num_batched_tokens=7), make_core(model), make_core(model)
    assert run(other, resumed).choices["r", 0].ids == whole.ids[5:]
    source.add_prefill(PrefillJob(leg="r", token_ids=(*prompt, *whole.ids[:4]), terms=resumed.terms))
    source.step()
    reservation = target.reserve(resumed)
    assert reservation is not None
    source.grant("r")
    while source.has_work:
        source.step()
    geometry, end = source.info.geometry, reservation.num_tokens
    for frame in plan_frames(0, end, geometry, SLOT_BYTES) + plan_state_frames(end, geometry, SLOT_BYTES):
        target.scatter(resumed.key, frame, source.gather("r", frame))
    target.commit(resumed.key)
    assert finished(target)["r", 0].ids == whole.ids[5:]


@pytest.mark.parametrize(
    ("runner", "scheduler", "named"),
    [
        ({"quantization": "int8"}, {}, "quantised weights"),
        ({"dtype": "float16"}, {}, "float16"),
        ({"host_pool_bytes": 1 << 20}, {}, "host_pool_bytes"),
        ({"state_slots": 3}, {}, "fewer than 4 state_slots"),
        ({"native_kernels": False}, {}, "pure torch"),
    ],
)
def test_what_states_do_not_go_with_is_refused_by_name(
    model: Path, runner: dict[str, Any], scheduler: dict[str, Any], named: str
) -> None:
    with pytest.raises(InvalidCheckpoint, match=named):
        make_core(model, runner=runner, **scheduler)


def test_drafts_and_a_disk_tier_are_refused_by_name(model: Path, tmp_path: Path) -> None:
    core = make_core(model)
    config = scheduler_config()
    with pytest.raises(InvalidCheckpoint, match="layers that have a state"):
        make_proposer(replace(config, speculation=SpeculationConfig(method="ngram")), core.runner)
    assert make_proposer(config, core.runner) is None
    with pytest.raises(InvalidCheckpoint, match="disk tier"):
        EngineCore(core.runner, config, disk=DiskTierConfig(directory=tmp_path, max_bytes=1 << 20))


def test_coverage_is_complete_with_every_layers_state() -> None:
    coverage = Coverage(4, 20, num_layers=2, num_state_layers=3)
    coverage.add(KvRange(4, 20, 0, 2))
    assert (coverage.is_complete, coverage.verified_tokens) == (False, 4)
    for wrong in (KvRange(18, 19, 2, 5), KvRange(19, 20, 1, 3), KvRange(19, 20, 2, 6)):
        assert not coverage.has_room(wrong)
    coverage.add(KvRange(19, 20, 2, 4))
    assert not coverage.is_complete
    coverage.add(KvRange(19, 20, 4, 5))
    assert (coverage.is_complete, coverage.verified_tokens) == (True, 20)
    assert Coverage(20, 20, num_layers=2, num_state_layers=3).is_complete
