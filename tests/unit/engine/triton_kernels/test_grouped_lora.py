"""Grouped kernels add what adapters one by one add, for any adapters of a step and whatever they lack."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.support.reference.triton_interpreter import DEVICE
from stratos.engine.checkpoint.model_config import DecoderConfig, parse_decoder_config
from stratos.engine.layers.linear import LinearFactory
from stratos.engine.lora.batch import LoraBatch, LoraGroup
from stratos.engine.lora.grouped import FUSED, GroupedAdapters
from stratos.engine.lora.host_copy import HostAdapter
from stratos.engine.lora.weights import GROUPS, LoraLayer, LoraWeights, lay_out
from stratos.engine.triton_kernels import lora
from tests.support.reference.tiny_models import BASE

TOKENS, CAPACITY = 23, 3
Ranks = dict[str, int]


@pytest.fixture
def config() -> DecoderConfig:
    return parse_decoder_config({**BASE, "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2})


def adapter(config: DecoderConfig, digest: str, ranks: Ranks, biased: tuple[str, ...] = ()) -> LoraWeights:
    """Random weights of some projections of the second layer; the first layer has none."""
    torch.manual_seed(len(digest))
    tensors = {}
    for name, (num_out, num_in) in config.projection_shapes(1).items():
        if name in ranks:
            tensors[1, name, "A"] = torch.randn(ranks[name], num_in)
            tensors[1, name, "B"] = torch.randn(num_out, ranks[name])
        if name in biased:
            tensors[1, name, "bias"] = torch.randn(num_out)
    biases = {(1, name): torch.ones(config.projection_shapes(1)[name][0], device=DEVICE) for name in biased}
    linear = LinearFactory(torch.device(DEVICE), torch.float32, enable_prepacked_gemm=False)
    return lay_out(HostAdapter(digest, tensors), config, linear, biases, torch.device(DEVICE))


@pytest.fixture
def adapters(config: DecoderConfig) -> list[LoraWeights]:
    return [
        adapter(config, "a", {name: 4 for names in GROUPS.values() for name in names}),
        adapter(config, "bb", {"q_proj": 3, "v_proj": 19, "up_proj": 1}, ("q_proj",)),
        adapter(config, "ccc", {"k_proj": 2, "o_proj": 5}),
        adapter(config, "dddd", {"down_proj": 2}),
    ]


@pytest.mark.parametrize("is_static", [False, True])
def test_sums_of_adapters_one_by_one(config: DecoderConfig, adapters: list[LoraWeights], is_static: bool) -> None:
    """The first tokens have no adapter; the second adapter's come to two segments."""
    grouped = GroupedAdapters(config, CAPACITY, TOKENS, torch.device(DEVICE))
    bounds = [slice(2, 4), slice(4, 22), slice(22, 23)]
    groups = [LoraGroup(weights, tokens) for weights, tokens in zip(adapters, bounds, strict=False)]
    assert all(map(grouped.fits, groups))
    grouped.fill(groups, TOKENS)
    step = grouped.static if is_static else grouped.step(groups, TOKENS)
    for name in ("output",) if is_static else ("qkv", "gate_up", "down"):
        every = config.projection_shapes(1)
        shapes = [every[projection] for projection in GROUPS[name] if projection in every]
        for layer in (0, 1) if is_static else (1,):
            x = torch.randn(TOKENS, shapes[0][1], device=DEVICE)
            base = torch.randn(TOKENS, sum(shape[0] for shape in shapes), device=DEVICE)
            expected, found = base.clone(), base.clone()
            LoraBatch(tuple(groups)).add(name, layer, x, expected)
            step.add(name, layer, x, found)
            assert torch.allclose(found, expected, atol=1e-4)
            assert torch.equal(found[:2], base[:2])


def test_slots_are_kept_while_they_are_used_and_given_away_afterwards(
    config: DecoderConfig, adapters: list[LoraWeights]
) -> None:
    grouped = GroupedAdapters(config, CAPACITY, TOKENS, torch.device(DEVICE))

    def slots(*indices: int) -> list[int]:
        groups = [LoraGroup(adapters[index], slice(place, place + 1)) for place, index in enumerate(indices)]
        return grouped.segments(groups)[:, 0].tolist()

    first = slots(0, 1)
    assert slots(1, 0) == first[::-1]
    assert len({*first, *slots(2)}) == 3
    grouped.forget_all_but(["bb", "ccc", "dddd"])
    assert slots(3) == first[:1], "the slot of the adapter that is gone"
    assert slots(1) == first[1:]
    entry = grouped.table[first[0], 1, FUSED.index("down")]
    assert entry[0] == adapters[3].layers["down", 1].shrink.weight.data_ptr()


def test_warming_up_runs_the_kernels_for_every_shape(config: DecoderConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes, add = [], lora.add_adapters

    def recorded(out: torch.Tensor, x: torch.Tensor, *rest: Any) -> None:
        add(out, x, *rest)
        assert not out.any()
        shapes.append((x.shape[1], out.shape[1]))

    monkeypatch.setattr(lora, "add_adapters", recorded)
    GroupedAdapters(config, CAPACITY, TOKENS, torch.device(DEVICE)).warm_up(torch.float32)
    expected = set()
    for names in GROUPS.values():
        every = config.projection_shapes(0)
        parts = [every[name] for name in names if name in every]
        expected.add((parts[0][1], sum(num_out for num_out, _ in parts)))
    assert set(shapes) == expected


def test_too_many_ranks_or_scattered_tokens_are_left_to_the_others(
    config: DecoderConfig, adapters: list[LoraWeights], monkeypatch: pytest.MonkeyPatch
) -> None:
    grouped = GroupedAdapters(config, CAPACITY, TOKENS, torch.device(DEVICE))
    assert not grouped.fits(LoraGroup(adapters[0], torch.tensor([0, 2])))
    monkeypatch.setattr(lora, "MAX_RANKS", 21)
    assert grouped.fits(LoraGroup(adapters[0], slice(0, 1)))
    assert not grouped.fits(LoraGroup(adapters[1], slice(0, 1)))


@pytest.mark.parametrize("fitting", [(0, 2), (), (0, 1, 2)])
def test_an_adapter_that_does_not_fit_is_added_alone_beside_the_others(
    config: DecoderConfig, adapters: list[LoraWeights], monkeypatch: pytest.MonkeyPatch, fitting: tuple[int, ...]
) -> None:
    grouped = GroupedAdapters(config, CAPACITY, TOKENS, torch.device(DEVICE))
    bounds = [slice(2, 4), slice(4, 22), slice(22, 23)]
    groups = [LoraGroup(weights, tokens) for weights, tokens in zip(adapters, bounds, strict=False)]
    monkeypatch.setattr(GroupedAdapters, "fits", lambda _, group: groups.index(group) in fitting)
    together, alone, add, add_to = [], [], lora.add_adapters, LoraLayer.add_to

    def add_together(
        out: torch.Tensor, x: torch.Tensor, table: torch.Tensor, segments: torch.Tensor, *rest: Any
    ) -> None:
        add(out, x, table, segments, *rest)
        together.append(sorted({(int(first), int(first + count)) for _, first, count, _ in segments if count}))

    def add_alone(part: LoraLayer, x: torch.Tensor, out: torch.Tensor) -> None:
        add_to(part, x, out)
        alone.append(len(x))

    x = torch.randn(TOKENS, config.projection_shapes(1)["q_proj"][1], device=DEVICE)
    shapes = config.projection_shapes(1)
    num_out = sum(shapes[name][0] for name in GROUPS["qkv"] if name in shapes)
    expected = torch.randn(TOKENS, num_out, device=DEVICE)
    found = expected.clone()
    LoraBatch(tuple(groups)).add("qkv", 1, x, expected)
    monkeypatch.setattr(lora, "add_adapters", add_together)
    monkeypatch.setattr(LoraLayer, "add_to", add_alone)
    grouped.step(groups, TOKENS).add("qkv", 1, x, found)
    assert torch.allclose(found, expected, atol=1e-4)
    rows = {0: [(2, 4)], 1: [(4, 20), (20, 22)], 2: [(22, 23)]}
    segments = [segment for index in fitting for segment in rows[index]]
    assert together == ([segments] if fitting else [])
    assert alone == [bounds[index].stop - bounds[index].start for index in range(3) if index not in fitting]
