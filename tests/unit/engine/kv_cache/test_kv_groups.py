"""KV groups on real models: the tokens of whole blocks, more sequences in the same pool, nothing of others read."""

from __future__ import annotations

import itertools
import json
import random
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from stratos.core.files.adapter_files import read_adapter_files
from stratos.core.kv import KvRange
from stratos.core.requests.records import ChoiceState, PrefillJob
from stratos.engine.core import EngineCore
from stratos.engine.runner.native_forward import NativeForward
from stratos.engine.runner.torch_runner import TorchRunner
from stratos.engine.settings import SchedulerConfig
from stratos.engine.speculation.ngram import NgramProposer
from tests.support.pairwise import thinned
from tests.support.reference.tiny_models import FAMILIES, greedy_reference, save_adapter, save_tiny
from tests.support.worlds.engine_driver import CROWDED, Run, assert_at_rest, drain, make_request
from tests.support.worlds.engine_settings import runner_config, scheduler_config

BLOCK_SIZE, STEP = 4, 16
DRAWN: dict[str, Any] = {"temperature": 1.0, "ignore_eos": True}
"""Draws with a seed: tokens that differ with any bit of the logits."""
NAMES = ["gemma2", "gemma3", "gpt-oss", "olmo3"]
KERNELS: dict[str, dict[str, Any]] = {
    "native": {},
    "exact torch": {"native_kernels": False, "exact": True},
    "int8": {"kv_dtype": "int8"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    @cache
    def make(name: str) -> Path:
        path = tmp_path_factory.mktemp("models") / name.replace(" ", "-")
        prefix, changes = FAMILIES[name]
        save_tiny(path, prefix, **{**changes, "max_position_embeddings": 256})
        return path

    return make


def make_engine(
    path: Path, *, has_groups: bool, num_blocks: int = 64, proposer: Any = None, **changes: Any
) -> EngineCore:
    values = {"max_num_batched_tokens": STEP, "max_num_seqs": 8, "window_release": has_groups, **CROWDED}
    values["prefix_cache"] = True
    scheduler = scheduler_config(**{key: changes.pop(key, value) for key, value in values.items()})
    runner = load(path, scheduler, num_blocks, **changes)
    assert (runner.info.groups is not None) == has_groups
    return EngineCore(runner, scheduler, proposer=proposer)


def load(path: Path, scheduler: SchedulerConfig, num_blocks: int, **changes: Any) -> TorchRunner:
    values = {"block_size": BLOCK_SIZE, "num_threads": 1, "max_model_len": 256, **changes}
    config = json.loads((path / "config.json").read_text())
    head_dim = config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])
    row = head_dim + 2 if changes.get("kv_dtype") == "int8" else 4 * head_dim
    block_bytes = config["num_hidden_layers"] * 2 * config["num_key_value_heads"] * BLOCK_SIZE * row
    settings = runner_config(model_path=path, kv_pool_bytes=num_blocks * block_bytes, **values)
    runner = TorchRunner.load(settings, scheduler=scheduler)
    assert runner.info.num_blocks == num_blocks
    return runner


def prompts(count: int, length: int, shared: int = 0, seed: int = 0) -> list[list[int]]:
    dice = random.Random(seed)
    head = [dice.randrange(97) for _ in range(shared)]
    return [head + [dice.randrange(97) for _ in range(length - shared)] for _ in range(count)]


@pytest.mark.parametrize(
    ("name", "kernels"),
    thinned(
        itertools.product(NAMES, KERNELS),
        [(name, kernels) for name in NAMES for kernels in KERNELS if kernels != "exact torch" or name == NAMES[0]],
    ),
)
def test_tokens_are_those_of_whole_blocks(folder: Any, name: str, kernels: str) -> None:
    requests = [
        make_request(ids, f"r{i}", max_tokens=40, n=1 + i % 2, **DRAWN) for i, ids in enumerate(prompts(5, 60, 21))
    ]
    found = []
    for has_groups in (False, True):
        engine = make_engine(folder(name), has_groups=has_groups, num_blocks=72, **KERNELS[kernels])
        for request in requests:
            engine.add(request)
        run = drain(engine)
        assert not run.errors
        assert_at_rest(engine)
        found.append(run.tokens)
    assert found[0] == found[1]


def test_more_sequences_live_in_the_same_pool(folder: Any) -> None:
    live, tokens = [], []
    for has_groups in (False, True):
        engine = make_engine(folder("gemma3"), has_groups=has_groups, num_blocks=104)
        for i, ids in enumerate(prompts(6, 100)):
            engine.add(make_request(ids, f"r{i}", max_tokens=100, **DRAWN))
        run, most = Run(engine), 0
        while engine.has_work:
            run.step()
            most = max(most, sum(len(s.block_table) for s in engine.inspect().sequences))
        assert not run.errors
        live.append(most)
        tokens.append(run.tokens)
    assert tokens[0] == tokens[1]
    assert live[0] <= 104
    assert live[1] >= 1.8 * live[0], live


def test_a_sequence_holds_a_window_of_its_window_part(folder: Any) -> None:
    engine = make_engine(folder("gemma3"), has_groups=True, num_blocks=64, prefix_cache=False)
    engine.add(make_request(prompts(1, 150)[0], max_tokens=50, **DRAWN))
    run = Run(engine)
    while engine.has_work:
        run.step()
    # 50 blocks of 200 tokens: a third of each for the full layer, two thirds of 9 blocks at most for the others
    assert run.max_allocated <= -(-50 // 3) + 9


def test_a_prefix_is_found_where_its_window_is_there(folder: Any) -> None:
    head, *_ = prompts(1, 64)
    whole = make_engine(folder("gemma3"), has_groups=False)
    engine = make_engine(folder("gemma3"), has_groups=True)
    for each in (whole, engine):
        each.add(make_request(head, "first", max_tokens=24, **DRAWN))
        first = drain(each).tokens["first", 0]
        each.add(make_request([*head, *first, 5, 6, 7], "second", max_tokens=8, **DRAWN))
    reference, run = drain(whole), drain(engine)
    assert run.tokens == reference.tokens
    assert run.stats["second"].num_cached_tokens == reference.stats["second"].num_cached_tokens == 84
    # a prompt that leaves the first one early finds what it shares as long as that part's window is there
    other = [*head[:33], *prompts(1, 20, seed=3)[0]]
    engine.add(make_request(other, "third", **DRAWN))
    assert drain(engine).stats["third"].num_cached_tokens == 32
    filler = make_request([1] * (4 * (engine.status().blocks.free + 10)), "filler")
    assert engine.reserve(filler) is not None  # window parts that were passed make room
    assert engine.status().num_evicted == 0
    engine.abort(filler.key)
    longer = [*head, *first, 5, 6, 7, *run.tokens["second", 0], 8, 9]
    for each in (whole, engine):
        each.add(make_request([*head[:50], 1, 2, 3], "fourth", **DRAWN))
        each.add(make_request(longer, "fifth", **DRAWN))
    reference, run = drain(whole), drain(engine)
    assert run.tokens == reference.tokens
    assert run.stats["fourth"].num_cached_tokens == 32 < reference.stats["fourth"].num_cached_tokens == 48
    assert run.stats["fifth"].num_cached_tokens == reference.stats["fifth"].num_cached_tokens == 96


@pytest.mark.parametrize("length", [33, 35])
def test_choices_that_go_on_behind_the_window_read_no_part_that_was_passed(folder: Any, length: int) -> None:
    ids = prompts(1, length)[0]
    engine = make_engine(folder("gemma3"), has_groups=True, num_blocks=96)
    engine.add(make_request(ids, "first", n=2, max_tokens=60, **DRAWN))
    first = drain(engine).tokens
    choices = [ChoiceState(index=i, emitted_ids=tuple(first["first", i][:50])) for i in range(2)]
    engine.add(make_request(ids, "again", choices=choices, max_tokens=60, **DRAWN))
    rest: dict[int, list[int]] = {0: [], 1: []}
    while engine.has_work:
        result = engine.step()
        assert not result.errors
        for output in result.outputs:
            rest[output.index] += output.token_ids
    assert rest == {i: first["first", i][50:] for i in range(2)}
    assert_at_rest(engine)


@pytest.mark.parametrize("sides", [(True, True), (True, False), (False, True)])
def test_hand_off_is_exact_between_pools_of_any_kind(folder: Any, sides: tuple[bool, bool]) -> None:
    ids = prompts(1, 90)[0]
    reference = make_engine(folder("gemma3"), has_groups=False)
    reference.add(make_request(ids, max_tokens=30, **DRAWN))
    source, target = (make_engine(folder("gemma3"), has_groups=side) for side in sides)
    request = make_request(ids, max_tokens=30, **DRAWN)
    reservation = target.reserve(request)
    assert reservation is not None
    source.add_prefill(PrefillJob(leg="leg", token_ids=tuple(ids[:-1]), receiver="d"))
    run = Run(source)
    run.step()
    source.grant("leg")
    run.drain()
    layers = source.info.geometry.num_layers
    for begin in range(0, 89, 17):
        for layer in range(0, layers, 2):
            part = KvRange(begin, min(89, begin + 17), layer, min(layers, layer + 2))
            target.scatter(request.key, part, source.gather("leg", part))
    target.commit(request.key)
    source.release_prefill("leg")
    assert drain(target).tokens == drain(reference).tokens
    for engine in (source, target):
        assert_at_rest(engine)


def test_drafts_change_nothing(folder: Any) -> None:
    ids = [3, 5, 9, 11] * 20
    tokens = []
    for has_groups, proposer in ((False, None), (True, NgramProposer())):
        engine = make_engine(folder("gemma3"), has_groups=has_groups, proposer=proposer)
        engine.add(make_request(ids, max_tokens=60, **DRAWN))
        tokens.append(drain(engine).tokens)
    assert tokens[0] == tokens[1]


@pytest.mark.parametrize("seed", range(4))
def test_any_order_of_requests_and_aborts_gives_the_same_tokens(folder: Any, seed: int) -> None:
    dice = random.Random(seed)
    wanted = [
        make_request(
            ids[: dice.randrange(30, 110)], f"r{i}", n=dice.choice([1, 1, 2]), max_tokens=dice.randrange(1, 60), **DRAWN
        )
        for i, ids in enumerate(prompts(12, 110, 41, seed))
    ]
    reference = make_engine(folder("gemma3"), has_groups=False, num_blocks=400)
    for request in wanted:
        reference.add(request)
    expected = drain(reference).tokens
    engine = make_engine(folder("gemma3"), has_groups=True, num_blocks=32)
    run, waiting, aborted = Run(engine), list(wanted), set[str]()
    while waiting or engine.has_work:
        if waiting and dice.random() < 0.7:
            engine.add(waiting.pop())
        if dice.random() < 0.03:
            key = dice.choice(wanted).key
            if key in engine.inspect().open_requests:
                engine.abort(key)
                aborted.add(key.request_id)
        run.step()
    assert not run.errors
    assert engine.status().num_preemptions > 0
    for place, tokens in run.tokens.items():
        assert tokens == expected[place][: len(tokens)]
        assert place[0] in aborted or len(tokens) == len(expected[place])
    assert_at_rest(engine)


@pytest.mark.parametrize(
    "changes", [{"overlap": True}, {"kv_allocation": "contiguous"}, {"window_release": False}, {}], ids=str
)
def test_a_block_is_one_page_where_parts_cannot_be_given_up(folder: Any, changes: dict[str, Any]) -> None:
    scheduler = scheduler_config(max_num_batched_tokens=STEP, **CROWDED, **changes)
    pool = {} if changes else {"host_pool_bytes": 1 << 16}
    values = {"block_size": BLOCK_SIZE, "kv_pool_bytes": 1 << 19, "num_threads": 1, **pool}
    config = runner_config(model_path=folder("gemma3"), max_model_len=256, **values)
    assert TorchRunner.load(config, scheduler=scheduler).info.groups is None
    short = replace(config, max_model_len=32, host_pool_bytes=0)
    assert TorchRunner.load(short, scheduler=scheduler_config(**CROWDED)).info.groups is None, "a step fills it"


def test_tokens_are_those_of_transformers_far_behind_the_window(folder: Any) -> None:
    ids = prompts(1, 90)[0]
    for name in NAMES:
        engine = make_engine(folder(name), has_groups=True)
        engine.add(make_request(ids, max_tokens=50, ignore_eos=True))
        model = AutoModelForCausalLM.from_pretrained(folder(name))
        assert drain(engine).tokens["r", 0] == greedy_reference(model, ids, 50), name


def test_probe_sleep_and_adapters(folder: Any, tmp_path: Path) -> None:
    prefix, fields = FAMILIES["gemma3"]
    save_tiny(tmp_path / "base", prefix, **{**fields, "max_position_embeddings": 256})
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    save_adapter(tmp_path / "adapter", model, rank=4, targets=["q_proj", "v_proj", "down_proj"], seed=3)
    files = read_adapter_files(tmp_path / "adapter")
    ids, found = prompts(1, 90)[0], []
    for has_groups in (False, True):
        engine = make_engine(tmp_path / "base", has_groups=has_groups)
        engine.load_adapter(files)
        before = engine.probe()
        engine.add(make_request(ids, "base", max_tokens=50, **DRAWN))
        engine.add(make_request(ids, "tuned", max_tokens=50, adapter_digest=files.digest, **DRAWN))
        tokens = drain(engine).tokens
        assert engine.probe() == before
        engine.sleep()
        engine.wake()
        assert engine.probe() == before
        engine.add(make_request(ids, "base", max_tokens=50, **DRAWN))
        assert drain(engine).tokens["base", 0] == tokens["base", 0]
        found.append(tokens)
    assert found[0] == found[1]
    assert found[0]["base", 0] != found[0]["tuned", 0]


def test_pages_move_as_whole_blocks_do(folder: Any) -> None:
    runner = make_engine(folder("gemma3"), has_groups=True).runner
    assert isinstance(runner, TorchRunner)
    table = runner.info.pages_of([5, 2, 9])
    part = KvRange(1, 11, 0, 3)
    payload = torch.randint(0, 200, (runner.info.geometry.num_bytes(part),), dtype=torch.uint8).numpy().tobytes()
    runner.scatter(table, part, memoryview(payload))
    assert bytes(runner.gather(table, part)) == payload
    with pytest.raises(ValueError, match="outside of the block table"):
        runner.gather(table, KvRange(0, 13, 0, 3))


def logprobs_of(run: Run) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for result in run.results:
        for output in result.outputs:
            found.setdefault(output.key.request_id, []).extend(output.logprobs)
    return found


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("changes", [{}, {"whole_step": False}, {"kv_dtype": "int8"}], ids=str)
def test_packed_pages_and_the_whole_step_pass(tmp_path: Path, dtype: str, changes: dict[str, Any]) -> None:
    prefix, fields = FAMILIES["gemma3"]
    save_tiny(tmp_path, prefix, **{**fields, "max_position_embeddings": 256, "head_dim": 32})
    found = []
    for has_groups in (False, True):
        scheduler = scheduler_config(max_num_batched_tokens=STEP, window_release=has_groups, **CROWDED)
        values = {"max_model_len": 256, "kv_pool_bytes": 1 << 20, "num_threads": 1, "dtype": dtype, **changes}
        runner = TorchRunner.load(runner_config(model_path=tmp_path, **values), scheduler=scheduler)
        assert (runner.info.groups is not None) == has_groups
        assert isinstance(runner.forward, NativeForward) == ("whole_step" not in changes)
        engine = EngineCore(runner, scheduler)
        for i, ids in enumerate(prompts(3, 100, 21)):
            engine.add(make_request(ids, f"r{i}", max_tokens=60, num_logprobs=1, **DRAWN))
        run = drain(engine)
        assert not run.errors
        found.append((run.tokens, logprobs_of(run)))
    assert found[0] == found[1]
