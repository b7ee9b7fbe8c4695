"""Poisoned requests end alone, with the status that fits the cause; the bits of their neighbours do not change.

Every case runs the same neighbours (greedy with log probabilities, sampled, penalised, adapted, embedded) with and
without a culprit that joins in the middle, over a real model, with no step ahead and with one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from stratos.common.errors import AdapterUnavailable, BadRequest, Internal, StratosError
from stratos.core.files.adapter_files import AdapterFiles, read_adapter_files
from stratos.core.requests.embedding import EmbedRequest, PoolingKind
from stratos.core.requests.grammar import GrammarKind, GrammarSpec
from stratos.core.requests.records import EngineRequest, RequestKey
from stratos.engine.core import EngineCore
from stratos.engine.grammar.masks import MaskFiller, fill_each
from stratos.engine.grammar.matcher import GrammarMatcher
from stratos.engine.requests.grammars import RequestGrammars
from stratos.engine.runner.step_inputs import StepInputs
from stratos.engine.runner.torch_runner import TorchRunner
from stratos.engine.settings import SchedulerConfig
from tests.support.pairwise import pairwise
from tests.support.paths import BASE_MODEL
from tests.support.reference.tiny_models import save_adapter, save_tiny
from tests.support.worlds.core_driver import make_core, make_request
from tests.support.worlds.engine_settings import scheduler_config
from tests.support.worlds.plan_driver import load_runner
from tests.support.worlds.terms import with_terms

PROMPT = [(i * 37 + 11) % 89 for i in range(23)]
"""Never the tokens below."""
RAISING, OVERFLOWING, NAN_LOGITS, UNKNOWN = 90, 91, 92, 97
JOINS_AT, VANISHES_AT = 3, 6


@dataclass
class World:
    path: Path
    runner: TorchRunner
    adapters: list[AdapterFiles]
    intruder: AdapterFiles
    """Takes the slot of the second adapter."""

    @property
    def digests(self) -> list[str]:
        return [files.digest for files in self.adapters]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A runner that raises where token ``RAISING`` is in the batch, and two adapters, which is all it holds."""
    root = tmp_path_factory.mktemp("world")
    model = save_tiny(root / "base", "Qwen2", tie_word_embeddings=False)
    adapters = []
    for seed in (1, 2, 3):
        save_adapter(root / str(seed), model, rank=4, targets=["q_proj", "up_proj"], seed=seed)
        adapters.append(read_adapter_files(root / str(seed)))
    runner = load_runner(root / "base", max_resident_adapters=2)
    with torch.inference_mode():
        runner.decoder.embedding[OVERFLOWING] = float("inf")
    poison(runner)
    return World(root / "base", runner, adapters[:2], adapters[2])


def poison(runner: TorchRunner) -> None:
    """Raise where ``RAISING`` is in the batch; make the logits after ``NAN_LOGITS`` NaN."""
    run = runner.forward.run

    def poisoned(inputs: StepInputs) -> Any:
        if bool((inputs.token_ids == RAISING).any()):
            raise RuntimeError("injected")
        result = run(inputs)
        if result.logits is not None:
            sampled = inputs.token_ids if inputs.sampled_tokens is None else inputs.token_ids[inputs.sampled_tokens]
            with torch.inference_mode():
                result.logits[sampled == NAN_LOGITS] = float("nan")
        return result

    runner.forward.run = poisoned  # type: ignore[method-assign]


@dataclass
class Got:
    """Every bit that came out, by request and choice."""

    choices: dict[tuple[str, int], list[Any]] = field(default_factory=dict)
    vectors: dict[str, bytes] = field(default_factory=dict)
    errors: dict[str, StratosError] = field(default_factory=dict)


def neighbours(core: EngineCore, digest: str) -> None:
    common: dict[str, Any] = {"max_tokens": 12, "ignore_eos": True}
    core.add(make_request(PROMPT, "greedy", temperature=0.0, num_logprobs=5, **common))
    common["bad_sequences"] = ((RAISING,), (OVERFLOWING,), (NAN_LOGITS,))
    core.add(make_request(PROMPT[:9], "sampled", n=2, temperature=0.9, top_p=0.9, **common))
    core.add(make_request(PROMPT[2:], "penalised", temperature=0.7, frequency_penalty=1.1, min_tokens=4, **common))
    adapted = make_request(PROMPT[:14], "adapted", temperature=1.0, num_logprobs=0, **common)
    core.add(with_terms(adapted, adapter_digest=digest))
    core.add_embedding(embedding("vector", PROMPT * 2))


def embedding(name: str, token_ids: list[int]) -> EmbedRequest:
    return EmbedRequest(key=RequestKey(name, 0), token_ids=tuple(token_ids), pooling=PoolingKind.MEAN)


def drain(core: EngineCore, events: dict[int, Callable[[], object]]) -> Got:
    """Step to the end, doing ``events`` before their step; the block ledger is recounted after every step."""
    got, step = Got(), 0
    while core.has_work:
        if step in events:
            events[step]()
        result = core.step()
        core.verify()
        for output in result.outputs:
            key = (output.key.request_id, output.index)
            got.choices.setdefault(key, []).extend([*output.token_ids, *output.logprobs, output.finish_reason])
        got.vectors |= {output.key.request_id: output.values for output in result.embeddings}
        got.errors |= {key.request_id: error for key, error in result.errors.items()}
        step += 1
        assert step < 300
    ledger = core.status().blocks
    assert ledger.free + ledger.cached == ledger.total
    return got


def attempt(world: World, overlap: bool, culprit: Callable[[EngineCore], object] | None, vanishing: str = "") -> Got:
    core = EngineCore(world.runner, scheduler_config(overlap=overlap, max_num_batched_tokens=24))
    for files in world.adapters:
        core.load_adapter(files)
    events: dict[int, Callable[[], object]] = {}
    neighbours(core, world.digests[0])
    if culprit is not None:
        events[JOINS_AT] = lambda: culprit(core)
    if vanishing:
        others = frozenset(world.digests) - {vanishing}
        events[VANISHES_AT] = lambda: world.runner.load_adapter(world.intruder, others.__contains__)
    return drain(core, events)


def bad(prompt: list[int], adapter: int | None = None, **params: Any) -> Callable[[World, EngineCore], object]:
    def add(world: World, core: EngineCore) -> None:
        request = make_request(prompt, "bad", n=2, **{"max_tokens": 20, "temperature": 0.0, **params})
        digest = "" if adapter is None else [*world.digests, "f" * 64][adapter]
        core.add(with_terms(request, adapter_digest=digest))

    return add


POISONS: dict[str, tuple[Callable[[World, EngineCore], object], type[StratosError]]] = {
    "forward raises": (bad([*PROMPT[:7], RAISING]), Internal),
    "forward raises on a chunk in the middle": (bad([*PROMPT, RAISING, *PROMPT * 2]), Internal),
    "hidden state overflows": (bad([5, OVERFLOWING, 6]), Internal),
    "logits of one row are NaN": (bad([5, 6, NAN_LOGITS]), Internal),
    "the same, sampled": (bad([5, 6, NAN_LOGITS], temperature=1.0, top_p=0.5, num_logprobs=3), Internal),
    "token outside of the vocabulary": (bad([5, UNKNOWN, 6]), BadRequest),
    "token that no integer holds": (bad([5, 2**70, 6]), Internal),
    "bias outside of the vocabulary": (bad(PROMPT, logit_bias={UNKNOWN: 1.0}), Internal),
    "ban outside of the vocabulary": (bad(PROMPT, stop_token_ids=(10**6,), min_tokens=3), Internal),
    "everything is banned": (bad(PROMPT, allowed_token_ids=(5,), bad_sequences=((5,),)), BadRequest),
    "adapter that never was": (bad(PROMPT, adapter=2), AdapterUnavailable),
    "adapter that vanishes": (bad(PROMPT, adapter=1, min_tokens=20), AdapterUnavailable),
    "input to embed raises": (lambda _, core: core.add_embedding(embedding("bad", [5, RAISING])), Internal),
    "input to embed overflows": (lambda _, core: core.add_embedding(embedding("bad", [5, OVERFLOWING])), Internal),
}


@pytest.fixture(scope="module")
def clean(world: World) -> Got:
    return attempt(world, 0, None)


def test_the_neighbours_are_not_trivial(clean: Got) -> None:
    assert not clean.errors
    assert len(clean.choices) == 5
    assert all(sum(isinstance(entry, int) for entry in got) == 12 for got in clean.choices.values())
    assert len(clean.vectors["vector"]) == 48 * 4


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("name", POISONS)
def test_the_culprit_ends_alone_and_no_other_bits_change(world: World, clean: Got, name: str, overlap: bool) -> None:
    add, error_class = POISONS[name]
    vanishing = world.digests[1] if "vanishes" in name else ""
    got = attempt(world, overlap, lambda core: add(world, core), vanishing)
    assert set(got.errors) == {"bad"}
    assert type(got.errors["bad"]) is error_class
    assert {key: value for key, value in got.choices.items() if key[0] != "bad"} == clean.choices
    assert got.vectors == clean.vectors


def test_no_adapter_at_all_ends_in_no_cached_block(world: World) -> None:
    """What ran with the base model in an adapter's stead must not be found by the adapter's next request."""
    core = EngineCore(world.runner, SchedulerConfig())
    core.add(with_terms(make_request(PROMPT, "bad"), adapter_digest="e" * 64))
    assert isinstance(drain(core, {}).errors["bad"], AdapterUnavailable)
    assert core.match(tuple(PROMPT), "e" * 64, b"") == 0


class FailingMatcher:
    """Stands for the matcher inside of one: raises when it is asked for a mask, or takes no token."""

    def __init__(self, inner: Any, fails: str) -> None:
        self._inner, self._fails, self.num_taken = inner, fails, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def consume_token(self, token_id: int) -> bool:
        self.num_taken += 1
        if self._fails == "accept" and self.num_taken == 3:
            raise RuntimeError("injected")
        return bool(self._inner.consume_token(token_id))

    def unsafe_compute_mask_ptr(self, *args: Any) -> None:
        if self._fails == "mask" and self.num_taken == 2:
            raise RuntimeError("injected")
        self._inner.unsafe_compute_mask_ptr(*args)


@pytest.mark.parametrize(
    ("fails", "overlap", "is_parallel"), pairwise(["mask", "accept"], [False, True], [True, False])
)
def test_a_grammar_that_fails_ends_its_request_alone(
    monkeypatch: pytest.MonkeyPatch, fails: str, overlap: bool, is_parallel: bool
) -> None:
    grammar = GrammarSpec(GrammarKind.REGEX, r"[0-9]{3}-[a-f]{2,4}")
    original = MaskFiller.fill_batch

    def fill(self: MaskFiller, batch: Mapping[int, GrammarMatcher], rows: Any) -> None:
        # llguidance's threads take its own matchers only
        is_poisoned = any(isinstance(matcher.compiled, FailingMatcher) for matcher in batch.values())
        fill_each(batch, rows) if is_poisoned else original(self, batch, rows)

    matchers_of = RequestGrammars.matchers

    def failing_matchers(self: RequestGrammars, request: EngineRequest) -> dict[int, GrammarMatcher]:
        matchers = matchers_of(self, request)
        for matcher in matchers.values():
            matcher.compiled = FailingMatcher(matcher.compiled, fails)  # type: ignore[assignment]
        return matchers

    monkeypatch.setattr(MaskFiller, "fill_batch", fill)
    got = []
    for is_poisoned in (False, True):
        switches = {"overlap": overlap, "parallel_grammar_masks": is_parallel}
        core = make_core(BASE_MODEL, kv_pool_bytes=8 << 20, **switches)
        core.add(make_request([5, 6, 7], "grammar", grammar=grammar, max_tokens=12, n=2))
        core.add(make_request([5, 6, 8], "free", max_tokens=12, num_logprobs=2))
        if is_poisoned:
            with monkeypatch.context() as patch:
                patch.setattr(RequestGrammars, "matchers", failing_matchers)
                core.add(make_request([9, 6, 8], "bad", grammar=grammar, max_tokens=12))
        got.append(drain(core, {}))
    assert set(got[1].errors) == {"bad"}
    assert isinstance(got[1].errors["bad"], Internal)
    assert {key: value for key, value in got[1].choices.items() if key[0] != "bad"} == got[0].choices
    assert not got[0].errors
