"""A fleet on one timeline: clients, one router, workers; from a trace to a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from stratos.core.block_hash import block_hashes, chain_root
from stratos.core.cache_changes import short_hashes
from stratos.core.placement import Placement, PlacementRequest
from stratos.core.requests.records import ChoiceState, EngineRequest, RequestKey
from stratos.core.requests.sampling_params import SamplingParams
from stratos.core.requests.terms import RequestTerms
from stratos.engine.contract.results import StepResult
from stratos.routing.policy.settings import RoutingPoliciesConfig
from stratos.sim.report import Recorder, SimulatedOutcome
from stratos.sim.router import SimRouter
from stratos.sim.runner import IDENTITY
from stratos.sim.timeline import Timeline
from stratos.sim.traces import ClientSession, Turn
from stratos.sim.worker import SimWorker, WorkerConfig

SAMPLE_INTERVAL_S = 0.25
"""Between two looks at the workers' loads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetConfig:
    """A simulated run: fleet, policies and load."""

    num_workers: int = 8
    worker: WorkerConfig = field(default_factory=WorkerConfig)
    policies: RoutingPoliciesConfig = field(default_factory=RoutingPoliciesConfig)
    concurrency: int | None = None
    """Sessions that are open at once: a next one begins when one ends. ``None``: they arrive by themselves."""
    ramp_s: float = 0.0
    """Time over which those of ``concurrency`` begin; at 0 all arrive at the moment of the first statuses."""
    sessions_per_s: float = 1.0
    """Rate of arrivals at random times, without ``concurrency``."""
    think_s: float = 1.0
    """Between the end of a turn and the next one of its session."""
    max_hashes: int = 256
    """Blocks of a prompt that its request names."""
    seed: int = 0


class SimFleet:
    """One run."""

    def __init__(self, config: FleetConfig, sessions: Sequence[ClientSession]) -> None:
        self._config = config
        self._timeline = Timeline()
        self._router = SimRouter(config.policies, self._timeline, config.seed, self._on_placed)
        self._workers = {
            name: SimWorker(name, config.worker, self._timeline, self._on_result, self._router.on_report)
            for name in (f"decode-{number}" for number in range(config.num_workers))
        }
        self._router.set_workers(worker.ref for worker in self._workers.values())
        self._root = chain_root(IDENTITY, "", b"")
        self._waiting = list(reversed(sessions))
        self._open: dict[str, tuple[ClientSession, int, SimulatedOutcome]] = {}
        self._handoffs: dict[str, str] = {}
        self._count = 0
        self.recorder = Recorder()

    def run(self) -> Recorder:
        """To the end of the trace."""
        for worker in self._workers.values():
            worker.report_status()
        config, rng, at_s = self._config, Random(self._config.seed), 0.0
        if config.concurrency is not None:
            for number in range(config.concurrency):
                self._timeline.at(config.ramp_s * number / config.concurrency, self._begin_session)
        else:
            for _ in range(len(self._waiting)):
                at_s += rng.expovariate(config.sessions_per_s)
                self._timeline.at(at_s, self._begin_session)
        self._timeline.at(SAMPLE_INTERVAL_S, self._sample)
        self._timeline.run()
        return self.recorder

    def _begin_session(self) -> None:
        if self._waiting:
            self._ask(self._waiting.pop(), 0)

    def _ask(self, session: ClientSession, number: int) -> None:
        turn = session.turns[number]
        self._count += 1
        request_id = f"r{self._count}"
        outcome = SimulatedOutcome(arrived_s=self._timeline.now(), num_prompt_tokens=len(turn.prompt_ids))
        self._open[request_id] = (session, number, outcome)
        hashes = block_hashes(self._root, turn.prompt_ids[:-1], self._config.worker.block_size)
        names = short_hashes(hashes[: self._config.max_hashes])
        self._router.schedule(
            PlacementRequest(
                request_id=request_id,
                model_digest=IDENTITY.model_digest,
                num_prompt_tokens=len(turn.prompt_ids),
                max_output_tokens_total=turn.num_output_tokens,
                block_hashes=names,
                session_key=session.key,
            )
        )

    def _on_placed(self, request: PlacementRequest, placement: Placement) -> None:
        session, number, _ = self._open[request.request_id]
        self._handoffs[request.request_id] = placement.handoff_id
        self._workers[placement.worker.worker_id].submit(
            self._engine_request(request.request_id, session.turns[number])
        )

    def _engine_request(self, request_id: str, turn: Turn) -> EngineRequest:
        return EngineRequest(
            key=RequestKey(request_id, 0),
            prompt_ids=turn.prompt_ids,
            choices=(ChoiceState(index=0),),
            sampling=SamplingParams(temperature=0.0, max_tokens=turn.num_output_tokens, ignore_eos=True),
            seed=0,
            terms=RequestTerms(arrival_s=self._timeline.now()),
        )

    def _on_result(self, worker: SimWorker, result: StepResult) -> None:
        assert not result.errors, result.errors
        now = self._timeline.now()
        for key, stats in result.started_stats.items():
            outcome = self._open[key.request_id][2]
            outcome.first_token_s, outcome.num_cached_tokens = now, stats.num_cached_tokens
        for output in result.outputs:
            outcome = self._open[output.key.request_id][2]
            outcome.num_output_tokens += len(output.token_ids)
            if output.finish_reason is not None:
                self._end(output.key.request_id)

    def _end(self, request_id: str) -> None:
        session, number, outcome = self._open.pop(request_id)
        outcome.ended_s = self._timeline.now()
        self.recorder.outcomes.append(outcome)
        self._router.complete(self._handoffs.pop(request_id), outcome.num_output_tokens)
        if number + 1 < len(session.turns):
            next_s = self._timeline.now() + self._config.think_s
            self._timeline.at(next_s, lambda: self._ask(session, number + 1))
        elif self._config.concurrency is not None:
            self._begin_session()

    def _sample(self) -> None:
        self.recorder.loads.append(tuple(worker.num_seqs for worker in self._workers.values()))
        if self._open or self._waiting:
            self._timeline.at(self._timeline.now() + SAMPLE_INTERVAL_S, self._sample)
