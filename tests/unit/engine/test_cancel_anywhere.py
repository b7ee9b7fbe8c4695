"""Cancelled at any moment of random schedules: nothing is said any more, and one step later nothing is held."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from stratos.core.requests.embedding import EmbedRequest, PoolingKind
from stratos.core.requests.grammar import GrammarKind, GrammarSpec
from stratos.core.requests.records import EngineRequest, PrefillJob, RequestKey
from stratos.engine.core import EngineCore
from stratos.engine.fake.runner import FakeConfig, FakeRunner
from tests.support.paths import BASE_MODEL
from tests.support.worlds.engine_driver import CROWDED, expected, make_request
from tests.support.worlds.engine_settings import scheduler_config

NUM_SCHEDULES = 40
GRAMMAR = GrammarSpec(GrammarKind.REGEX, "[a-z]{30}")


class Schedule:
    """One engine under a random load, and what it said."""

    def __init__(self, seed: int, overlap: bool) -> None:
        self.draw = random.Random(seed)
        self.has_grammars = seed % 8 == 0
        config = scheduler_config(
            max_num_seqs=self.draw.choice([3, 6]),
            max_num_batched_tokens=self.draw.choice([4, 9, 64]),
            prefix_cache=self.draw.random() < 0.7,
            swap_costs=False,
            **CROWDED,
        )
        fake = FakeConfig(
            overlap=overlap,
            num_blocks=self.draw.choice([11, 16]),
            block_size=4,
            num_host_blocks=self.draw.choice([0, 24]),
            model_path=BASE_MODEL if self.has_grammars else None,
            eos_token_ids=(0, 4),
        )
        self.engine = EngineCore(FakeRunner(fake), config)
        self.requests: dict[RequestKey, EngineRequest] = {}
        self.embeddings: set[RequestKey] = set()
        self.reserved: set[RequestKey] = set()
        self.legs: set[str] = set()
        self.tokens: dict[tuple[RequestKey, int], list[int]] = {}
        self.dead: set[tuple[RequestKey, int]] = set()
        self.phases: Counter[str] = Counter()
        self.count = 0

    def come(self) -> None:
        """Something new arrives: a request, a hand-off, a job, an input to embed."""
        self.count += 1
        key = RequestKey(f"r{self.count}", 0)
        prompt = tuple((self.count * 3 + i) % 50 for i in range(self.draw.randrange(1, 15)))
        weights = [6, 4 * self.has_grammars, 2, 1, 1]
        kind = self.draw.choices(["add", "grammar", "reserve", "job", "embed"], weights)[0]
        request = make_request(
            prompt,
            key.request_id,
            self.draw.randrange(1, 4),
            max_tokens=12,
            grammar=GRAMMAR if kind == "grammar" else None,
            arrival_s=float(self.count),
            cache_salt=b"hand-off" if kind == "reserve" else b"",  # nothing is received: its KV is not shared
        )
        if kind == "job":
            self.engine.add_prefill(PrefillJob(leg=key.request_id, token_ids=prompt))
            self.legs.add(key.request_id)
        elif kind == "embed":
            self.engine.add_embedding(EmbedRequest(key=key, token_ids=prompt, pooling=PoolingKind.MEAN))
            self.embeddings.add(key)
        elif kind == "reserve":
            if len(prompt) > 1 and self.engine.reserve(request) is not None:
                self.requests[key] = request
                self.reserved.add(key)
        else:
            self.engine.add(request)
            self.requests[key] = request

    def step(self) -> None:
        result = self.engine.step()
        self.engine.verify()
        assert not result.errors
        assert not result.prefill_errors
        for output in result.outputs:
            assert (output.key, output.index) not in self.dead, "a token of a choice that is cancelled or over"
            tokens = self.tokens.setdefault((output.key, output.index), [])
            assert output.offset == len(tokens)
            tokens += output.token_ids
            if output.finish_reason:
                self.end(output.key, (output.index,))
        for embedding in result.embeddings:
            assert embedding.key in self.embeddings, "a vector of an input that is cancelled"
            self.embeddings.remove(embedding.key)
        for event in result.prefill_events:
            assert event.leg in self.legs, "an event of a job that is released"

    def go_on(self) -> None:
        """Let one hand-off or job that waits for a peer go on."""
        if self.reserved and self.draw.random() < 0.3:
            key = self.draw.choice(sorted(self.reserved))
            self.reserved.remove(key)
            self.engine.commit(key)
        if self.legs and self.draw.random() < 0.5:
            self.engine.grant(self.draw.choice(sorted(self.legs)))

    def end(self, key: RequestKey, indexes: tuple[int, ...]) -> None:
        self.dead |= {(key, index) for index in indexes}
        if all((key, choice.index) in self.dead for choice in self.requests[key].choices):
            del self.requests[key]
            self.reserved.discard(key)

    def cancel_one(self) -> None:
        """Cancel a request, some of its choices, an input or a job, in any phase."""
        kind = self.draw.random()
        if kind < 0.6 and self.requests:
            key = self.draw.choice(sorted(self.requests))
            indexes = [choice.index for choice in self.requests[key].choices]
            some = tuple(self.draw.sample(indexes, self.draw.randrange(1, len(indexes) + 1)))
            self.note_phase(key)
            is_whole = self.draw.random() < 0.5
            self.engine.abort(key, () if is_whole else some)
            self.end(key, tuple(indexes) if is_whole else some)
        elif kind < 0.8 and self.embeddings:
            key = self.draw.choice(sorted(self.embeddings))
            self.embeddings.remove(key)
            self.engine.abort(key)
        elif self.legs:
            leg = self.draw.choice(sorted(self.legs))
            self.legs.remove(leg)
            self.engine.release_prefill(leg)

    def cancel_all(self) -> None:
        for key, request in list(self.requests.items()):
            self.note_phase(key)
            self.engine.abort(key)
            self.end(key, tuple(choice.index for choice in request.choices))
        for key in self.embeddings:
            self.engine.abort(key)
        for leg in self.legs:
            self.engine.release_prefill(leg)
        self.embeddings.clear()
        self.legs.clear()

    def note_phase(self, key: RequestKey) -> None:
        """What the requests that were cancelled were doing: the test looks whether it saw everything."""
        if key in self.reserved:
            self.phases["hand-off"] += 1
            return
        for sequence in self.engine.inspect().sequences:
            if sequence.key != key:
                continue
            if sequence.queue == "waiting":
                phase = "swapped" if sequence.is_swapped else "preempted" if sequence.epoch else "queued"
            elif sequence.num_output:
                phase = "decode"
            else:
                phase = "prefill" if sequence.remaining > 1 else "before the first token"
            self.phases[phase] += 1
            self.phases["in flight"] += bool(sequence.num_in_flight)
            self.phases["grammar"] += sequence.has_grammar
            self.phases["copy"] += sequence.awaits_copy

    def assert_nothing_is_held(self) -> None:
        engine, held, status = self.engine, self.engine.inspect(), self.engine.status()
        blocks, slots, num_kept = status.blocks, status.host.slots, held.num_kept_blocks
        assert blocks.free + blocks.cached + num_kept == blocks.total, blocks
        assert slots.free + slots.cached + num_kept == slots.total, slots
        assert not held.sequences
        assert held.num_free_batch_slots == held.max_batch_slots
        assert held.num_loading_blocks == held.num_reserved_output_blocks == held.num_pending_copies == 0
        assert not held.has_step_fences
        assert not held.open_requests + held.open_embeddings + held.open_jobs + held.open_reservations
        assert status.num_running == status.num_waiting == status.num_prefill_jobs == status.num_queued_tokens == 0
        assert status.is_computing == engine.has_work == bool(num_kept)

    def run(self) -> None:
        for _ in range(self.draw.randrange(3, 40)):
            for _ in range(self.draw.choice([0, 0, 1, 2])):
                self.come()
            if self.draw.random() < 0.25:
                self.cancel_one()
            self.go_on()
            self.step()
        if self.draw.random() < 0.5:
            self.come()
        self.cancel_all()
        self.step()
        self.assert_nothing_is_held()

    def check_tokens(self) -> None:
        """A local request's tokens are those of arithmetic, with any others cancelled."""
        prompt = (7, 8, 9, 10, 11)
        key = RequestKey("after", 0)
        self.requests[key] = make_request(prompt, "after", max_tokens=12)
        self.engine.add(self.requests[key])
        while self.engine.has_work:
            self.step()
        right = expected(prompt, 12)
        assert self.tokens[key, 0] == right[: len(self.tokens[key, 0])]
        self.assert_nothing_is_held()


@pytest.mark.parametrize("part", range(3))
def test_nothing_is_said_or_held_after_a_cancel(overlap: bool, part: int) -> None:
    phases: Counter[str] = Counter()
    for seed in range(part * NUM_SCHEDULES, (part + 1) * NUM_SCHEDULES):
        schedule = Schedule(seed, overlap)
        schedule.run()
        schedule.check_tokens()
        phases += schedule.phases
    wanted = {"queued", "prefill", "before the first token", "decode", "preempted", "hand-off", "grammar"}
    wanted |= {"swapped", "in flight"} if overlap else {"swapped"}
    assert wanted <= phases.keys(), phases
