"""The engine core: joins scheduler, request tables, step loop and runner. Synchronous, without I/O.

Life of a request on a decode worker
    local prompt:  ``add`` -> steps compute the prompt in chunks -> sampled tokens in ``StepResult.outputs``
    hand-off:      ``match`` -> (source sends Ready) -> ``reserve`` -> ``scatter`` ... -> ``commit`` -> outputs
Life of a prefill job on a source
    ``add_prefill`` -> event ``READY`` (its blocks are taken, nothing runs yet) -> ``grant`` -> events ``CHUNK``
    -> event ``DONE`` -> ``gather`` as often as needed, from any thread -> ``release_prefill``
Life of an input to embed
    ``add_embedding`` -> steps compute it in chunks -> its vector in ``StepResult.embeddings``

Every request ends in exactly one of: an output with a finish reason for each choice, its embedding, an entry in
``StepResult.errors``, or a call of ``abort``.  Ids of ended requests may be used again with a new attempt.

Other threads than the one that owns the engine may call ``gather``, ``scatter``, ``pack``, ``unpack``, ``status``, and
what a client calls ``BESIDE_STEPS``.  State changes under one lock, the runner works without it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from stratos.common.clock import Clock, SystemClock
from stratos.common.errors import BadRequest
from stratos.core.cache_changes import CacheChanges
from stratos.core.requests.embedding import EmbedRequest
from stratos.core.requests.grammar import GrammarSpec
from stratos.core.requests.records import EngineRequest, PrefillJob, RequestKey
from stratos.engine.adapter_pins import AdapterPins
from stratos.engine.contract.results import BlockReservation, EngineStatus, StepResult
from stratos.engine.contract.runner import Runner
from stratos.engine.engine_lock import EngineLock
from stratos.engine.inspection import EngineInspection, SequenceInspection
from stratos.engine.kv_cache.cache import KvCache
from stratos.engine.kv_copies import KvCopies
from stratos.engine.kv_disk.disk_tier import make_disk_tier, no_blocks
from stratos.engine.ledger_audit import LedgerAudit
from stratos.engine.requests.context import EngineContext
from stratos.engine.requests.embeddings import EmbeddingTable
from stratos.engine.requests.generations import GenerationTable
from stratos.engine.requests.grammars import RequestGrammars
from stratos.engine.requests.prefill_jobs import PrefillJobTable
from stratos.engine.requests.reservations import ReservationTable
from stratos.engine.scheduler.scheduler import Scheduler
from stratos.engine.settings import DiskTierConfig, SchedulerConfig
from stratos.engine.sleep import EngineSleep
from stratos.engine.slow_steps import SlowSteps
from stratos.engine.speculation.proposer import Proposer
from stratos.engine.step_loop import StepLoop
from stratos.engine.step_tracker import StepTracker

STATUS_WAIT_S = 0.01
"""How long a status waits for a change that another thread is making; then it is the one before."""


class EngineCore:
    """One model, one KV pool, one thread; ``runner`` decides what computes, ``proposer`` drafts tokens."""

    def __init__(
        self,
        runner: Runner,
        config: SchedulerConfig,
        clock: Clock | None = None,
        proposer: Proposer | None = None,
        disk: DiskTierConfig | None = None,
    ) -> None:
        self.info, self.runner, clock = runner.info, runner, clock or SystemClock()
        overlap = runner.info.overlap if config.switches.overlap is None else config.switches.overlap
        overlap = overlap and proposer is None and config.baseline.kv_cache  # drafts and repeats need known tokens
        self._kv = KvCache.make(runner.info, config, clock, is_fenced=overlap)
        self._blocks = self._kv.blocks
        self._scheduler = Scheduler(config, self._kv, clock)
        self._context = EngineContext(
            info=runner.info,
            config=config,
            clock=clock,
            kv=self._kv,
            scheduler=self._scheduler,
            grammars=RequestGrammars(runner.info, config, clock),
        )
        self._requests, self._reservations = GenerationTable(self._context), ReservationTable(self._context)
        self._jobs, self._embeddings = PrefillJobTable(self._context), EmbeddingTable(self._context)
        self._changing = EngineLock()
        self._lock = self._changing.reading
        copies = KvCopies(runner, self._kv, self._jobs, self._reservations, self._changing)
        self.gather, self.scatter, self.pack, self.unpack = copies.gather, copies.scatter, copies.pack, copies.unpack
        self._adapter_pins = AdapterPins(runner, self._changing)
        self.load_adapter, self.pin_adapter = self._adapter_pins.load, self._adapter_pins.pin
        self.unpin_adapter = self._adapter_pins.unpin
        self._slow_steps = SlowSteps()
        tracker = StepTracker(self._context, self._requests, self._jobs, self._embeddings, self._reservations)
        self._steps = StepLoop(runner, tracker, self._slow_steps, overlap, self._changing, proposer)
        tier = self.disk = make_disk_tier(disk, runner, self._kv, clock, self._changing, config)
        self.disk_worth_s = tier.worth_s if tier else no_blocks
        self.load_blocks = tier.load if tier else no_blocks
        self._audit = LedgerAudit(self.verify, clock)
        self._status, self._changing.has_changed = self._snapshot(), False
        self.probe, self.check_weights = runner.probe, runner.check_weights
        self._rest = EngineSleep(runner, proposer, self._kv, self._has_open_work, self._changing)
        self.sleep, self.wake = self._rest.sleep, self._rest.wake

    # -- requests ----------------------------------------------------------------------------------

    def add(self, request: EngineRequest) -> None:
        """Queue a request whose prompt is computed here.

        Raises:
            Overloaded: the waiting queue is full.
            ContextLengthExceeded: it could never fit into the pool or the model's context.
            BadRequest: the model has no output layer, so it only embeds.
        """
        with self._changing():
            self._check_new(request)
            self._requests.add(request)

    def _check_new(self, request: EngineRequest) -> None:
        if not self.info.can_generate:
            raise BadRequest("this model only embeds", param="model", code="unsupported_operation")
        if not request.prompt_ids:
            raise BadRequest("a request needs at least one prompt token", param="prompt_ids")
        if all(choice.finished for choice in request.choices):
            raise BadRequest("every choice of the request is finished already", param="choices")
        emitted = max((len(choice.emitted_ids) for choice in request.choices), default=0)
        self._context.check_size(len(request.prompt_ids), max(1, emitted))
        self._kv.admission.check_request(request)
        self._check_key(request.key)

    def _check_key(self, key: RequestKey) -> None:
        self._rest.check_awake()
        if key in self._requests or key in self._reservations or key in self._embeddings:
            raise BadRequest("this attempt of the request is here already", param="request_id")

    def add_embedding(self, request: EmbedRequest) -> None:
        """Queue an input to embed; it shares the batch with everything else.

        Raises:
            Overloaded: the waiting queue is full.
            ContextLengthExceeded: it could never fit into the pool or the model's context.
            BadRequest: no tokens, more dimensions than the model has, or its key is in use.
        """
        with self._changing():
            self._check_key(request.key)
            self._embeddings.add(request)

    def prepare_grammar(self, spec: GrammarSpec) -> None:
        """Compile a grammar ahead of the request that needs it; without this ``add`` and ``commit`` compile it.

        Raises:
            BadRequest: it cannot be compiled.
        """
        self._context.grammars.prepare(spec)

    def abort(self, key: RequestKey, choice_indexes: tuple[int, ...] = ()) -> None:
        """End a request (or some choices) in any phase, reservations included; unknown keys are ignored."""
        with self._changing():
            if key in self._reservations:
                if choice_indexes:
                    self._reservations.cancel_choices(key, choice_indexes)
                else:
                    self._reservations.drop(key)
            self._requests.abort(key, choice_indexes)
            self._embeddings.abort(key)

    # -- hand-off, receiving side ------------------------------------------------------------------

    def match(self, prompt_ids: tuple[int, ...], adapter_digest: str, cache_salt: bytes) -> int:
        """Tokens of the prompt, last one excluded, that the prefix cache holds now. References nothing."""
        with self._lock:
            hashes = self._context.prompt_hashes(prompt_ids, adapter_digest, cache_salt)
            return self._context.num_cached_blocks(hashes) * self._blocks.block_size

    def reserve(self, request: EngineRequest) -> BlockReservation | None:
        """Reference the cached prefix and take blocks for the rest of the prompt; ``None`` when there is no room."""
        with self._changing():
            self._check_new(request)
            return self._reservations.reserve(request)

    def commit(self, key: RequestKey) -> None:
        """Make verified blocks visible; the request joins the batch. ``KeyError``: unknown; ``Busy``: damaged."""
        with self._changing():
            self._requests.adopt(self._reservations.commit(key))

    def commit_part(self, key: RequestKey, num_tokens: int) -> bool:
        """``commit`` with tokens ``[0, num_tokens)`` alone, the rest is computed here; ``False``: it is gone."""
        with self._changing():
            if state := self._reservations.take_part(key):
                self._requests.adopt(state, num_tokens)
            return state is not None

    # -- hand-off, sending side --------------------------------------------------------------------

    def add_prefill(self, job: PrefillJob) -> None:
        """Queue a prefill job; takes nothing yet. Raises like ``add``."""
        with self._changing():
            self._rest.check_awake()
            self._jobs.add(job)

    def grant(self, leg: str) -> None:
        """Let a job that is READY run. Raises ``KeyError`` for an unknown leg."""
        with self._changing():
            self._jobs.grant(leg)

    def park(self, leg: str) -> None:
        """Take the blocks of a READY job back until its grant, which is late, comes. Unknown: ignored."""
        with self._changing():
            self._jobs.park(leg)

    def release_prefill(self, leg: str) -> None:
        """End a job in any phase; its blocks become evictable, or fenced while a gather runs. Unknown: ignored."""
        with self._changing():
            self._jobs.release(leg)

    # -- one step ----------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """``step`` would do something."""
        return (
            self._scheduler.has_work or self._kv.tier.has_pending or bool(self._jobs.events) or self._steps.is_in_flight
        )

    def _has_open_work(self) -> bool:
        return self.has_work or self.inspect().has_open_work

    def step(self) -> StepResult:
        """Run one step: schedule, execute, sample, retire. Without work it returns an empty result.

        With overlap it launches a step and retires the one before, so the first call returns no tokens. A row that
        makes the runner raise ends alone, in ``errors``.

        Raises:
            Exception: the runner computes nothing at all any more; the engine must not be used again.
        """
        result = self._steps.step()
        if not self.has_work and self._audit.run_if_due():
            self._changing.has_changed = True
        return result

    # -- the rest ----------------------------------------------------------------------------------

    def forget_blocks(self, hashes: list[bytes]) -> int:
        """Drop blocks from the prefix cache by hash; returns how many were known."""
        with self._changing():
            return self._kv.forget(hashes)

    def forget_tenant(self, tenant: str) -> int:
        """Drop what is left of a tenant, its blocks in both tiers above all; returns how many of them were known."""
        with self._changing():
            self._steps.forget_tenant(tenant)
            return self._kv.forget_tenant(tenant)

    def distrust(self) -> None:
        """Leave no KV on disk for the next process: what this one computes is wrong."""
        with self._changing():
            if self.disk is not None:
                self.disk.forget_all()

    def when_removed(self, tell: Callable[[], None]) -> None:
        """Have ``tell`` called once the disk tier has removed the files of what was forgotten."""
        assert self.disk is not None, "there are no files"
        with self._changing():
            self.disk.removals.when_done(tell)

    def cache_changes(self, after: int | None) -> CacheChanges:
        """Changes of the prefix cache after change ``after``; all of it for ``None``, or an old number."""
        return self._blocks.cache.changes_since(after, self._lock)

    def status(self) -> EngineStatus:
        # Made when it is asked for: it walks through every sequence, and a step changes them several times.
        if (self._changing.has_changed or self._kv.are_pins_due) and self._lock.acquire(timeout=STATUS_WAIT_S):
            try:
                self._status, self._changing.has_changed = self._snapshot(), False
            finally:
                self._lock.release()
        return self._status

    def inspect(self) -> EngineInspection:
        """Contents of the engine, queue by queue; for tests and diagnostics, since it copies everything."""
        with self._lock:
            scheduler, tier, window = self._scheduler, self._kv.tier, self._kv.tables.window
            in_flight, queues = self._steps.in_flight, scheduler.queues
            return EngineInspection(
                sequences=tuple(SequenceInspection.of(name, s) for name, line in queues.items() for s in line),
                open_requests=self._requests.open,
                open_reservations=self._reservations.open,
                open_embeddings=self._embeddings.open,
                open_jobs=self._jobs.open,
                max_batch_slots=scheduler.config.max_batch_slots,
                num_free_batch_slots=scheduler.num_free_seqs,
                num_reserved_output_blocks=scheduler.num_unused_budget_blocks,
                expected_output_tokens=self._kv.admission.output_lengths.value,
                max_window_blocks=None if window is None or self.info.groups else window.max_blocks,
                cached_blocks=self._blocks.cache.blocks_by_hash(),
                num_kept_blocks=tier.num_kept,
                num_loading_blocks=tier.num_loading,
                num_pending_copies=self._requests.num_pending_copies,
                launched_copies=in_flight.plan.copies if in_flight is not None else (),
                has_step_fences=self._kv.fences.is_pending,
                adapter_pins=self._adapter_pins.counts(),
                num_compiled_grammars=self._context.grammars.num_compiled,
            )

    def verify(self) -> None:
        """Recount the block ledger from scratch; for tests and for the audit."""
        with self._lock:
            self._kv.verify()

    def _snapshot(self) -> EngineStatus:
        waiting, ready, running = self._scheduler.waiting, self._scheduler.ready, self._scheduler.running
        held, size = (*ready, *running), self._blocks.block_size
        prompts = (s for queue in (waiting, ready, running) for s in queue if s.remaining > 1)
        return EngineStatus(
            step=self._steps.num_retired,
            is_computing=bool(running) or self._steps.is_in_flight,
            blocks=self._blocks.ledger(),
            num_waiting=len(waiting),
            num_running=len(running),
            num_free_batch_slots=max(0, self._scheduler.num_free_seqs) if self._scheduler.is_admitting else 0,
            num_promised_blocks=self._scheduler.num_promised_blocks,
            p90_output_tokens=self._kv.admission.output_lengths.value,
            kv_watermark=self._context.config.kv_watermark,
            num_free_adapter_slots=max(0, self.info.num_adapter_slots - len(self._adapter_pins)),
            num_queued_tokens=sum(s.remaining for s in prompts),
            num_prefill_jobs=len(self._jobs),
            resident_adapters=self.runner.resident_adapters(),
            slow_step_s=self._slow_steps.slowest_s,
            num_preemptions=self._scheduler.num_preemptions,
            num_evicted=self._blocks.num_evicted,
            num_admission_refusals=self._kv.admission.num_refusals,
            waiting_by_class=dict(Counter(s.terms.priority_class for s in waiting)),
            audits=self._audit.counts,
            cost_errors=self._scheduler.cost.errors,
            num_kv_tokens=sum(s.num_computed - s.num_released * size for s in held),
            host=self._kv.tier.status(),
            disk=self._kv.disk_status(),
            load_ratios=self._kv.load_ratios(),
            pins=self._kv.pin_status(),
            states=self._kv.state_status(),
            last_cache_change=self._blocks.cache.changes.last,
        )
