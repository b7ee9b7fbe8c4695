"""Metrics of the gateway; tenant ids are the only labels that come from outside."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from prometheus_client import CollectorRegistry, Counter, Gauge

from stratos.common.shed_reason import ShedReason
from stratos.core.generation import Receipt
from stratos.core.ledger.pricing import Times, kept_promises
from stratos.core.tenancy.plan import Plan
from stratos.core.tenant import PLATFORM_TENANT
from stratos.rpc.instruments import Instruments, counter, gauge, loop_counter, loop_histogram
from stratos.rpc.loop_instruments import LoopHistogram
from stratos.rpc.metrics import OTHER_TENANTS, TenantLabels

_TTFT_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.35, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
_DURATION_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0)
_LENGTH_BUCKETS = (1.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0, 65536.0, 131072.0)
"""Tokens."""
_ITL_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.033, 0.05, 0.1, 0.25, 0.5, 1.0, 3.0, 10.0)

# fmt: off
MODEL_INFO = gauge(
    "stratos_model_info", "1 for each revision that the gateway serves: name and digest, to join other series with.",
    "model", "model_digest",
)
# fmt: on
CERTIFICATE_EXPIRY = gauge(
    "stratos_http_certificate_expiry_timestamp_seconds",
    "End of validity of the API's certificate, as the last handshake got it, in Unix time.",
)


class AnswerOutcome(enum.StrEnum):
    """How a request for tokens or vectors ended; the values are labels."""

    FINISHED = "finished"
    REFUSED = "refused"
    """By the client's fault: a status of 4xx, or such an error within the stream."""
    FAILED = "failed"
    """By ours; a stream that began with 200 and ends with an error is one."""
    LEFT = "left"
    """The client ended the connection."""


@dataclass(slots=True)
class RequestMeters:
    """Instruments of requests with one set of labels, looked up once."""

    ttft: LoopHistogram
    itl: LoopHistogram
    duration: LoopHistogram
    prompt_length: LoopHistogram
    output_length: LoopHistogram
    prompt_tokens: Counter
    output_tokens: Counter

    def count_for(self, others: RequestMeters) -> None:
        """Open requests count from now on among these others: the series of their tenant are over."""
        self.prompt_tokens, self.output_tokens = others.prompt_tokens, others.output_tokens


DAY_S = 24 * 3600.0


class GatewayMetrics(Instruments):
    """All instruments, bound to the registry that is passed in.

    Args:
        registry: of the process.
        model: name of the gateway's first base model: the label of requests that no model was found for.
        max_tenants: with series of their own.
    """

    # fmt: off
    _ttft = loop_histogram(
        "stratos_request_ttft_seconds", "Time from a prompt's start to its first token.",
        "model", "class", buckets=_TTFT_BUCKETS_S,
    )
    _itl = loop_histogram(
        "stratos_request_itl_seconds", "Time between consecutive tokens of one choice, as they reach the gateway.",
        "model", "class", buckets=_ITL_BUCKETS_S,
    )
    _duration = loop_histogram(
        "stratos_request_duration_seconds", "Time from a request's arrival to the end of its answer.",
        "model", "class", buckets=_DURATION_BUCKETS_S,
    )
    _prompt_length = loop_histogram(
        "stratos_request_prompt_tokens", "Prompt tokens of an answered request.", "model", "class",
        buckets=_LENGTH_BUCKETS,
    )
    _output_length = loop_histogram(
        "stratos_request_output_tokens", "Output tokens of an answered request, over all its choices.",
        "model", "class", buckets=_LENGTH_BUCKETS,
    )
    outcomes = loop_counter(
        "stratos_request_outcomes", "Ended requests for tokens or vectors; an error within a stream counts as one.",
        "model", "class", "outcome",
    )
    _choices = counter(
        "stratos_auto_answers",
        "Answers to requests for the model auto, by the model that gave them and the reason for that one.",
        "model", "reason",
    )
    promises = counter(
        "stratos_promises",
        "Answered prompts whose plan promises a time (ttft, itl), by whether it was kept or missed.",
        "plan", "promise", "outcome",
    )
    promise_windows = counter(
        "stratos_promise_windows", "Windows with a promised p99, by whether it was kept or missed.",
        "tenant", "plan", "outcome",
    )
    promise_window_p99 = gauge(
        "stratos_promise_window_p99_seconds",
        "Measured p99 of the last window of a promise (ttft, itl), at most 2 % above the exact one.",
        "tenant", "plan", "promise",
    )
    promise_window_credit = counter(
        "stratos_promise_window_credit",
        "Credits of windows that missed a promised p99, in units of the currency.", "tenant", "plan",
    )
    requests = loop_counter("stratos_requests", "Answered HTTP requests (499: the client left).", "route", "status")
    shed = counter(
        "stratos_requests_shed", "Requests that a full system refused (503 overloaded), by reason.",
        "reason", zeros=ShedReason,
    )
    limited = counter(
        "stratos_requests_limited",
        "Requests for tokens or vectors that a limit of their tenant refused (429), by the error's code.",
        "tenant", "code",
    )
    open = gauge("stratos_requests_open", "Generation requests that are open now.")
    open_bodies = gauge("stratos_request_bodies_open", "Bodies of generation requests that are on their way in now.")
    ended_by_drain = counter(
        "stratos_requests_ended_by_drain",
        "Generation requests that the end of the gateway's drain ended with an error.",
    )
    ended_by_refusal = counter(
        "stratos_requests_ended_by_refusal",
        "Running requests whose tenant, key, model or adapter was suspended, revoked or blocked.",
    )
    connections = gauge("stratos_http_connections", "Connections of the OpenAI API.")
    connections_refused = counter("stratos_http_connections_refused", "Connections beyond the limit.")
    _prompt_tokens = loop_counter(
        "stratos_prompt_tokens", "Prompt tokens of ended requests.", "tenant", "model", "class"
    )
    _output_tokens = loop_counter(
        "stratos_output_tokens", "Output tokens, as they reach the gateway.", "tenant", "model", "class"
    )
    embedding_inputs = counter("stratos_embedding_inputs", "Inputs whose embedding was answered.")
    recoveries = counter("stratos_recoveries", "Attempts after the first one, by what ended the one before.", "cause")
    content_hits = counter(
        "stratos_content_hits", "Hits of content policies, by rule and by side (input, output).",
        "tenant", "rule", "side",
    )
    content_unchecked = counter(
        "stratos_content_unchecked",
        "Texts that no classifier gave a verdict on, by what the policy made of them (passed, refused).",
        "tenant", "side", "outcome",
    )
    overflows = counter(
        "stratos_overflow_requests",
        "Requests that went to the external endpoint: served, broken in the middle, failed (they wait here).",
        "outcome",
    )
    prompt_sources = loop_counter(
        "stratos_prompt_tokens_by_source", "Prompt tokens by where their KV came from at the decode worker.", "source"
    )
    prefills = loop_counter("stratos_prefills", "Prompts by the path their KV took.", "path")
    routers = gauge("stratos_routers", "Routers, by whether they answer.", "state")
    reports_dropped = counter(
        "stratos_router_reports_dropped",
        "Ends of attempts that no router was told; their bookings end by their lease.",
    )
    convictions = counter(
        "stratos_convictions",
        "Prompts that this gateway convicted, because two workers were lost as they began.",
    )
    convicted_refusals = counter(
        "stratos_convicted_refusals", "Placements that were not asked for, because the prompt is convicted."
    )
    ledger_entries = loop_counter("stratos_ledger_entries", "Entries written into the ledger, by outcome.", "outcome")
    ledger_pending = gauge("stratos_ledger_pending", "Entries in memory that could not be written or spooled.")
    ledger_spool_bytes = gauge("stratos_ledger_spool_bytes", "Entries on disk that wait for Redis.")
    ledger_dropped = counter("stratos_ledger_dropped", "Entries given up: too many waited, or a disk lost them.")
    ledger_unsealed = gauge(
        "stratos_ledger_unsealed_entries", "Entries of the ledger in Redis, of all gateways, that no segment has yet."
    )
    ledger_seal_lag = gauge(
        "stratos_ledger_seal_lag_seconds",
        "Time since all entries that were due had gone from Redis to the object store.",
    )
    redis_memory = gauge("stratos_redis_memory_ratio", "Part of Redis's maxmemory that is used, 0 without a bound.")
    redis_file_failed = gauge(
        "stratos_redis_file_failed", "1 while Redis says that it could not write its last file (AOF or RDB)."
    )
    budget_used = gauge(
        "stratos_budget_used_ratio", "Part of a tenant's budget of the month that is spent.", "tenant"
    )
    budget_alerts = counter("stratos_budget_alerts", "Bounds of budgets that were reached.", "tenant", "level")
    responses = counter(
        "stratos_response_cache_requests", "Requests that the response cache could answer.", "outcome"
    )
    stream_records = counter(
        "stratos_stream_records",
        "Records of streams, by what happened: made, replayed, taken (over from a gateway that is gone), "
        "attached (those of them whose worker went on), fenced, cancelled, gone, "
        "queued (without a client), spilled (to the object store), unread (there, for now), lost (there), "
        "or none though one was wanted.",
        "event", zeros=(
            "made", "replayed", "taken", "attached", "fenced", "cancelled", "gone", "queued", "spilled", "unread",
            "lost", "none",
        ),
    )
    continuations = counter(
        "stratos_continuations",
        "Continuation tokens: issued, redeemed, or refused (used before, or too old).",
        "event", zeros=("issued", "redeemed", "refused"),
    )
    batch_lines = counter(
        "stratos_batch_lines",
        "Lines of batches that this gateway answered (completed, failed), or was refused for now (deferred).",
        "outcome", zeros=("completed", "failed", "deferred"),
    )
    batch_lines_limit = gauge(
        "stratos_batch_lines_limit",
        "Lines that may run at this gateway now: fewer where workers refuse them, or clients' requests would wait.",
    )
    batch_lines_waiting = gauge(
        "stratos_batch_lines_waiting", "Lines of open batches that are not answered, of all gateways of the model."
    )
    batch_lines_due = gauge(
        "stratos_batch_lines_due", "Lines of them to be answered within an hour, so that batches keep their windows."
    )
    batch_window_left = gauge(
        "stratos_batch_window_left_seconds",
        "Shortest time until the window of an open batch ends; that of a whole day where there is none.",
    )
    model_records = gauge("stratos_model_records", "Records of models, by how they stand at this gateway.", "state")
    model_refused = gauge(
        "stratos_model_refused", "1 for each model that is recorded and not served here.", "model", "model_digest"
    )
    sockets = gauge("stratos_response_sockets_open", "WebSockets for responses that are open now.")
    sessions = gauge("stratos_sessions_open", "Sessions with decode workers.")
    # fmt: on

    def __init__(self, registry: CollectorRegistry, model: str = "", max_tenants: int = 200) -> None:
        super().__init__(registry)
        self.model = model
        self._registry = registry
        self.batch_window_left.set(DAY_S)
        self.tenants = TenantLabels(max_tenants)
        self._running: dict[tuple[str, int, str], RequestMeters] = {}
        # What every request counts is looked up once for each set of labels, of which there are few.
        self.answered = lru_cache(1024)(self.requests.labels)
        self.ended = lru_cache(1024)(self.outcomes.labels)
        self.written = lru_cache(64)(self.ledger_entries.labels)
        self._prefills_by = lru_cache(64)(self.prefills.labels)
        self._prompt_tokens_from = lru_cache(64)(self.prompt_sources.labels)
        self._model_info: Gauge | None = None
        self._shown: set[tuple[str, str]] = set()
        self._refused: set[tuple[str, str]] = set()

    def running(self, tenant: str, priority_class: int, model: str = "") -> RequestMeters:
        """The instruments of a tenant's requests of one class for one base model; "" is the first one."""
        model = model or self.model
        key = self.tenants.label_of(tenant), priority_class, model
        if (meters := self._running.get(key)) is None:
            # What the platform asks itself is in no customer's percentile.
            labels = model, "platform" if tenant == PLATFORM_TENANT else str(priority_class)
            own = key[0], *labels
            for outcome in AnswerOutcome if tenant != PLATFORM_TENANT else ():  # a rate needs the zero before
                self.outcomes.labels(model, str(priority_class), outcome)
            meters = self._running[key] = RequestMeters(
                ttft=self._ttft.labels(*labels),
                itl=self._itl.labels(*labels),
                duration=self._duration.labels(*labels),
                prompt_length=self._prompt_length.labels(*labels),
                output_length=self._output_length.labels(*labels),
                prompt_tokens=self._prompt_tokens.labels(*own),
                output_tokens=self._output_tokens.labels(*own),
            )
        return meters

    def agree_on_tenants(self, tenants: Iterable[str]) -> None:
        """Give series of their own to the tenants that all processes agreed on, the largest first."""
        for gone in self.tenants.agree(tenants):
            for key in [key for key in self._running if key[0] == gone]:
                self._running.pop(key).count_for(self.running(OTHER_TENANTS, *key[1:]))
            self.end_series("tenant", gone)

    def show_models(self, served: Iterable[tuple[str, str]]) -> None:
        """Show which name each served digest has: routers and autoscaler know digests alone."""
        if self._model_info is None:
            self._model_info = MODEL_INFO.open(self._registry)
        now = set(served)
        for gone in self._shown - now:
            self._model_info.remove(*gone)
        for name, digest in now:
            self._model_info.labels(name, digest).set(1)
        self._shown = now

    def show_records(self, states: Mapping[str, int], refused: Iterable[tuple[str, str]]) -> None:
        """Show how many records of models are in each state, and name and digest of those that are refused."""
        for state, number in states.items():
            self.model_records.labels(state).set(number)
        now = set(refused)
        for gone in self._refused - now:
            self.model_refused.remove(*gone)
        for name, digest in now:
            self.model_refused.labels(name, digest).set(1)
        self._refused = now

    def show_causes(self, causes: Iterable[str]) -> None:
        """Show every cause of a recovery from the start, so that a rate sees the first one."""
        for cause in causes:
            self.recoveries.labels(cause)

    def note_choice(self, model: str, reason: str) -> None:
        """Count an answer of a model that rules chose; both texts are an operator's."""
        self._choices.labels(model, reason).inc()

    def count_promises(self, plan: Plan, times: Times) -> None:
        """Whether an answered prompt came in the times of its tenant's plan."""
        for promise, is_kept in kept_promises(plan, times).items():
            for outcome, has_come in (("kept", is_kept), ("missed", not is_kept)):  # a rate needs the zero before
                self.promises.labels(plan.name, promise, outcome).inc(has_come)

    def observe_external(self, receipt: Receipt, *, is_complete: bool) -> None:
        """Count a request of the external endpoint; its prompt is none of ours."""
        assert receipt.is_external, "workers have their own path"
        self.prefills.labels(receipt.prefill_path).inc()
        self.overflows.labels("served" if is_complete else "broken").inc()

    def show_certificate_expiry(self, not_after_unix_s: Callable[[], float]) -> None:
        """Show until when the certificate of the API is valid; without TLS there is no such series."""
        CERTIFICATE_EXPIRY.open(self._registry).set_function(not_after_unix_s)

    def observe_receipt(self, receipt: Receipt) -> None:
        """Count where a prompt's KV came from."""
        self._prefills_by(receipt.prefill_path).inc()
        self._prompt_tokens_from("cached").inc(receipt.num_cached_tokens)
        self._prompt_tokens_from("transferred").inc(receipt.num_transferred_tokens)
        self._prompt_tokens_from("recomputed").inc(receipt.num_recomputed_tokens)
