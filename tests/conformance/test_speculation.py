"""Speculation over the shipped pair of models: in every situation the streams, log probabilities, shares of tenants
and cached blocks are those without drafts.  Some of the matrix runs always, every two values meet in the thorough run,
and ``make speculation`` runs all of it.
"""

from __future__ import annotations

import atexit
import functools
import itertools
import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from stratos.core.block_hash import block_hashes
from stratos.core.files.adapter_files import AdapterFiles, read_adapter_files
from stratos.core.generation import ChoiceDelta
from stratos.core.requests.records import EngineRequest
from stratos.engine import step_tracker
from stratos.engine.contract.results import StepResult
from stratos.engine.requests.generations import GenerationTable
from stratos.engine.runner.torch_runner import TorchRunner
from stratos.engine.step_tracker import LaunchedRow, StepTracker
from stratos.reproduce.material.random_model import write_adapter
from stratos.text.detokenizer import Detokenizer
from stratos.text.stop import StopMatcher
from stratos_gateway.generation.journal import ChoiceJournal
from tests.support.fakes.proposers import KnowingProposer
from tests.support.pairwise import pairwise
from tests.support.paths import BASE_MODEL
from tests.support.reference.base_tokenizer import base_tokenizer
from tests.support.worlds.plan_driver import load_runner
from tests.support.worlds.speculation_matrix import SITUATIONS, Engines, Run, differences, requests

METHODS, COUNTS, WEIGHTS = ("ngram", "suffix", "draft", "self"), (1, 4, 8, 0), ("auto", "int8", "int8 kv")
SETTINGS: dict[str, dict[str, str]] = {
    "auto": {},
    "int8": {"quantization": "int8"},
    "int8 kv": {"kv_dtype": "int8"},
    "int4": {"quantization": "int4"},
    "fp8": {"quantization": "fp8"},
    "fp8 kv": {"kv_dtype": "fp8"},
    "int8 + int8 kv": {"quantization": "int8", "kv_dtype": "int8"},
    "draft": {},
    "self": {"quantization": "int4"},
}
DRAFTS = {"draft": BASE_MODEL.parent / "draft", "self": BASE_MODEL}
"""Folders of the models that draft."""
FEW = [
    ("auto", "ngram", 8, "batch"),
    ("auto", "suffix", 4, "preempted"),
    ("auto", "draft", 1, "handed off"),
    ("int8", "draft", 0, "taken on"),
    ("auto", "self", 0, "drained"),
]
QUANTISED = [
    ("int4", "ngram", 8, "preempted"),
    ("int4", "suffix", 4, "recovered"),
    ("fp8", "draft", 4, "batch"),
    ("fp8 kv", "ngram", 8, "handed off"),
    ("fp8 kv", "draft", 0, "taken on"),
    ("int8 + int8 kv", "suffix", 8, "drained"),
    ("int8 + int8 kv", "draft", 4, "preempted"),
]
"""Further schemes; the grid is without them."""
GRID = pairwise(WEIGHTS, METHODS, COUNTS, SITUATIONS)
PAIRS = [row.values for row in GRID if not row.marks and row.values not in FEW]
REST = [row.values for row in GRID if row.marks and row.values not in FEW]


@functools.cache
def adapters() -> list[AdapterFiles]:
    """The three that ship, and a random one for the attention alone."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder)  # runners read it as long as the module runs
    write_adapter(json.loads((BASE_MODEL / "config.json").read_text()), folder, 4, 7)
    return [read_adapter_files(path) for path in (*sorted((BASE_MODEL.parent / "adapters").iterdir()), folder)]


def all_requests() -> list[EngineRequest]:
    return requests([files.digest for files in adapters()])


@pytest.fixture(scope="module")
def runner_of() -> Callable[[str], TorchRunner]:
    made: dict[str, TorchRunner] = {}

    def get(weights: str) -> TorchRunner:
        if weights not in made:
            settings = SETTINGS[weights.removesuffix(" source")]
            made[weights] = load_runner(DRAFTS.get(weights, BASE_MODEL), kv_pool_bytes=16 << 20, **settings)
            for files in adapters() if weights not in DRAFTS else ():
                made[weights].load_adapter(files)
        return made[weights]

    return get


@pytest.fixture(scope="module")
def without(runner_of: Callable[[str], TorchRunner]) -> Callable[[str, str], Run]:
    """What comes out without drafts, by weights and situation: in each the streams of requests that are alone."""
    made: dict[tuple[str, str], Run] = {}

    def get(weights: str, situation: str) -> Run:
        if (weights, situation) not in made:
            engines = Engines(runner_of(weights), runner_of("draft"), runner_of(f"{weights} source"))
            made[weights, situation] = SITUATIONS[situation](engines, all_requests())
            assert made[weights, situation].choices == get(weights, "alone").choices
        return made[weights, situation]

    return get


def assert_equal(runner_of: Callable, without: Callable, case: tuple[str, str, int, str]) -> None:
    weights, method, count, situation = case
    draft = runner_of(method if method in DRAFTS else "draft")
    engines = Engines(runner_of(weights), draft, runner_of(f"{weights} source"), method, count)
    after = SITUATIONS[situation](engines, all_requests())
    assert differences(without(weights, situation), after) == []
    assert after.num_drafted > 0


@pytest.mark.parametrize("case", FEW, ids=lambda case: "-".join(map(str, case)))
def test_some_of_the_matrix(runner_of: Callable, without: Callable, case: tuple[str, str, int, str]) -> None:
    assert_equal(runner_of, without, case)


@pytest.mark.slow
@pytest.mark.parametrize("case", QUANTISED + PAIRS, ids=lambda case: "-".join(map(str, case)))
def test_every_pair_of_the_matrix(runner_of: Callable, without: Callable, case: tuple[str, str, int, str]) -> None:
    assert_equal(runner_of, without, case)


@pytest.mark.matrix
@pytest.mark.parametrize("case", REST, ids=lambda case: "-".join(map(str, case)))
def test_the_rest_of_the_matrix(runner_of: Callable, without: Callable, case: tuple[str, str, int, str]) -> None:
    assert_equal(runner_of, without, case)


@pytest.mark.parametrize("end", ["stop id", "max_tokens"])
def test_an_end_inside_an_accepted_run_is_where_it_is_without_drafts(runner_of: Callable, end: str) -> None:
    """Drafts are right as far as the stream goes on without that end, so the run reaches beyond it."""
    whole = [request for request in all_requests() if request.key.request_id in ("greedy", "adapted too")]
    plain = Engines(runner_of("auto"), runner_of("draft"), runner_of("auto source"))
    streams = {place: outcome.ids for place, outcome in SITUATIONS["batch"](plain, whole).choices.items()}
    for request in whole:
        ids = streams[request.key.request_id, 0]
        place = next(i for i in range(4, len(ids)) if ids[i] not in ids[:i])
        changes = {"stop_token_ids": (ids[place],)} if end == "stop id" else {"max_tokens": place + 1}
        ended = replace(request, sampling=replace(request.sampling, **changes))
        before = SITUATIONS["alone"](plain, [ended])
        engines = replace(plain, method="ngram", count=8, proposer=KnowingProposer(streams, 4096))
        assert differences(before, SITUATIONS["alone"](engines, [ended])) == []
        engine = engines.make()
        engine.add(ended)
        results = [engine.step() for _ in range(2)]  # the prompt, then everything else
        (last,) = results[1].outputs
        assert (last.finish_reason is not None, 1 + len(last.token_ids)) == (True, place + 1)
        assert results[1].num_accepted == place - 1
        assert results[1].num_drafted > place - 1 or end == "max_tokens"
        assert not engine.has_work


def test_a_stop_string_inside_an_accepted_run_ends_the_text_where_it_does_without_drafts(runner_of: Callable) -> None:
    """Each step's tokens come to a gateway as one piece, of which what follows the stop string is in no text."""
    whole = [request for request in all_requests() if request.key.request_id in ("greedy", "marked")]
    plain = Engines(runner_of("auto"), runner_of("draft"), runner_of("auto source"))
    streams = {place: outcome.ids for place, outcome in SITUATIONS["batch"](plain, whole).choices.items()}
    engines = replace(plain, method="ngram", count=8, proposer=KnowingProposer(streams, 4096))
    tokenizer = base_tokenizer()
    for request in whole:
        ids = streams[request.key.request_id, 0]
        text = tokenizer.decode(ids)
        begin = len(tokenizer.decode(ids[:5]))
        stop = next(text[begin:end] for end in range(begin + 1, len(text)) if text.find(text[begin:end]) == begin)
        told = []
        for each in (plain, engines):
            made = each.make()
            made.add(request)
            journal = ChoiceJournal(0, Detokenizer(tokenizer), StopMatcher([stop]))
            while not journal.is_finished:
                (output,) = made.step().outputs
                piece = ChoiceDelta(index=0, offset=len(journal.ids), token_ids=output.token_ids)
                num_unused = len(output.token_ids) - journal.accept(piece)
            made.abort(request.key)
            chunk = journal.take()
            assert chunk is not None
            told.append((chunk.text, chunk.token_ids, chunk.stop, num_unused > 0))
        assert [is_inside for *_, is_inside in told] == [False, True], "the run goes on behind the stop string"
        assert told[0][:3] == told[1][:3] == (text[:begin], told[0][1], stop)


# -- planted errors ----------------------------------------------------------------------------------


def let_through(monkeypatch: pytest.MonkeyPatch, one_in: int = 20) -> list[int]:
    """A wrong token is let through, once in so many rows with one; returned are the rows in which it was."""
    original, rows, planted = step_tracker.accepted_runs, itertools.count(1), list[int]()

    def wrong(step, tokens):
        whole = {
            launched.row.seq_id: [t for t in tokens.tokens if t.seq_id == launched.row.seq_id] for launched in step.rows
        }
        runs = original(step, tokens)
        for seq_id, run in runs.items():
            if len(whole[seq_id]) > len(run) and (row := next(rows)) % one_in == 0:
                run.append(whole[seq_id][len(run)])
                planted.append(row)
        return runs

    monkeypatch.setattr(step_tracker, "accepted_runs", wrong)
    return planted


def keep_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks with KV of rejected drafts go into the prefix cache."""

    def before(tracker: StepTracker, launched: LaunchedRow, result: StepResult) -> None:
        sequence, kv = launched.sequence, tracker.context.kv
        hashes = block_hashes(sequence.root, [*sequence.tokens, *launched.row.drafts], kv.blocks.block_size)
        for index in range(sequence.num_hashed, min(len(hashes), len(sequence.block_table))):
            kv.store(hashes[index], sequence.block_table[index], sequence.terms.tenant)

    wrap_retire(monkeypatch, before)


def bill_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts are in the shares of tenants, whether they were accepted or not."""

    def before(tracker: StepTracker, launched: LaunchedRow, result: StepResult) -> None:
        assert launched.sequence.request is not None
        key = launched.sequence.request.request.key
        result.shares.requests[key] = result.shares.requests.get(key, 0) + 1

    wrap_retire(monkeypatch, before)


def wrap_retire(monkeypatch: pytest.MonkeyPatch, before: Callable) -> None:
    """Do something with each drafted row just before its step retires."""
    original = StepTracker.retire

    def wrong(self, step, tokens, result):
        for launched in step.rows:
            if launched.row.verify and launched.is_current:
                before(self, launched, result)
        original(self, step, tokens, result)

    monkeypatch.setattr(StepTracker, "retire", wrong)


def penalise_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rejected draft counts as emitted for the penalties of the next token."""
    original = GenerationTable.row

    def wrong(self, sequence, count):
        row = original(self, sequence, count)
        drafted = sequence.drafting.proposed if sequence.drafting is not None else ()
        if row.sample is None or not row.sample.output_ids or not drafted:
            return row
        return replace(row, sample=replace(row.sample, output_ids=(*row.sample.output_ids, *drafted)))

    monkeypatch.setattr(GenerationTable, "row", wrong)


def engines_with_errors(runner_of: Callable, without: Callable) -> Engines:
    """Engines whose drafts are right twice and then wrong: each row has a rejected token."""
    streams = {place: outcome.ids for place, outcome in without("auto", "batch").choices.items()}
    proposer = KnowingProposer(streams, 4096, error=1, num_right=2)
    return Engines(runner_of("auto"), runner_of("draft"), runner_of("auto source"), "ngram", 8, proposer)


@pytest.mark.parametrize(
    ("plant", "noticed"),
    [
        (let_through, "stream"),
        (keep_rejected, "prefix cache"),
        (penalise_drafts, "stream"),
        (bill_drafts, "shares of tenants"),
    ],
)
def test_a_planted_error_is_noticed(
    runner_of: Callable, without: Callable, monkeypatch: pytest.MonkeyPatch, plant: Callable, noticed: str
) -> None:
    before, engines = without("auto", "batch"), engines_with_errors(runner_of, without)
    assert differences(before, SITUATIONS["batch"](engines, all_requests())) == []
    plant(monkeypatch)
    found = differences(before, SITUATIONS["batch"](engines, all_requests()))
    assert any(text.startswith(noticed) for text in found), found


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_wrong_token_once_in_a_thousand_rows_is_noticed(
    runner_of: Callable, without: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches that it was not in are as without drafts, and the first that it was in is not."""
    before, engines = without("auto", "batch"), engines_with_errors(runner_of, without)
    planted = let_through(monkeypatch, one_in=1000)
    while not planted:
        found = differences(before, SITUATIONS["batch"](engines, all_requests()))
        assert bool(found) is bool(planted), found
