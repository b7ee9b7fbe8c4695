"""Records of placement: what a gateway asks the router, and what it gets.

The router service, its client and the pure routing library share them; none of them is a pb2 type.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from stratos.common.changed import record
from stratos.common.ids import new_id
from stratos.core.cache_changes import CacheLayout
from stratos.core.requests.limits import BATCH_CLASS
from stratos.core.requests.terms import DEFAULT_TERMS, RequestTerms
from stratos.core.trace import NO_TRACE, TraceContext


class WorkerRole(enum.StrEnum):
    """Role of a worker process."""

    PREFILL = "prefill"
    DECODE = "decode"


class Work(enum.StrEnum):
    """Kind of work that a request asks for."""

    GENERATION = "generation"
    EMBEDDING = "embedding"

    @property
    def role(self) -> WorkerRole:
        """Role of the workers that run it, whose room it waits for at a router."""
        return WorkerRole.PREFILL if self is Work.EMBEDDING else WorkerRole.DECODE


class Outcome(enum.StrEnum):
    """How an attempt ended."""

    FINISHED = "finished"
    CANCELLED = "cancelled"
    FAILED = "failed"
    SETTLED = "settled"
    """No end: a suspect goes on, and is no suspect any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRef:
    """One running worker process."""

    worker_id: str
    """Stable name within the deployment, e.g. "decode-0"."""
    incarnation: str
    """Drawn at process start; a restarted worker has another one."""
    address: str
    """host:port of its gRPC server."""
    role: WorkerRole


@record(frozen=True, slots=True, kw_only=True)
class PlacementRequest:
    """Asks where one attempt of a request may run."""

    request_id: str
    attempt: int = 0
    terms: RequestTerms = DEFAULT_TERMS
    """Without salt and adapter URI."""
    model_digest: str
    num_prompt_tokens: int
    """Tokens of the prompt, and of the output so far for a resume."""
    max_output_tokens_total: int
    """Most output tokens over all choices; 0 for embeddings."""
    num_choices: int = 1
    """Or number of inputs to embed."""
    work: Work = Work.GENERATION
    excluded_incarnations: frozenset[str] = frozenset()
    """Workers to avoid while another one serves the model."""
    hung_incarnations: frozenset[str] = frozenset()
    """Workers among them that stood still, and are avoided only until they move again."""
    waited_ms: int = 0
    """Milliseconds this request has waited in earlier calls."""
    num_emitted_tokens: int = 0
    """Output tokens of earlier attempts, over all choices."""
    is_move: bool = False
    """Journal recovery, drain move or Busy: head of its class, never shed."""
    is_suspect: bool = False
    """It may be the cause of a worker's death."""
    refusals: Mapping[str, int] = field(default_factory=dict)
    """Incarnations that answered Busy, each with the version of the status that the placement went by: closed to the
    request until the status has another version."""
    block_hashes: tuple[int, ...] = ()
    """Short hashes of the prompt's first blocks (``stratos.core.cache_changes``); empty when the gateway has none."""
    session_key: int = 0
    """Equal for requests that belong together, 64 bits; 0 when the gateway knows none."""
    zone: str = ""
    """Where the gateway runs; empty when it does not say."""
    region: str = ""
    """Around that zone."""
    prompt_digest: bytes = field(default=b"", repr=False)
    """Keyed hash of the tenant's prompt, to refuse it once it is convicted; empty for one that never is."""
    overflow_after_ms: int = 0
    """The request may go elsewhere: it is refused where it would wait longer than that; 0 lets it wait."""
    trace: TraceContext = NO_TRACE
    required_features: frozenset[str] = frozenset()
    """Features that the worker must offer, see ``stratos.core.features``."""

    @property
    def is_resumed(self) -> bool:
        """It emitted tokens before, so its worker admits it up to the whole pool."""
        return self.num_emitted_tokens > 0

    @property
    def takes_spot(self) -> bool:
        """It may run at a worker that may vanish at any moment."""
        return self.terms.priority_class >= BATCH_CLASS


@record(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where one attempt runs."""

    decode: WorkerRef | None
    """``None`` for embeddings, which run at the first of ``prefill``."""
    prefill: tuple[WorkerRef, ...] = ()
    """Up to two, best first; none means the decode worker computes the prompt."""
    handoff_id: str
    """Minted by the router; names the hand-off of this attempt and the router's booking."""
    queued_ms: int = 0
    """Milliseconds this call waited in the queue."""
    router_address: str = ""
    """Address of the router that booked it, and that gets the report of the attempt's end."""
    status_version: int = 0
    """Version of the worker's status that the choice went by."""
    cache_layout: CacheLayout | None = None
    """For the block hashes of later requests; ``None`` when no policy looks at them."""
    scores: Mapping[str, float] = field(default_factory=dict)
    """Worker id -> score of the best workers that could run the attempt, the chosen one among them; a few at most."""
    rejections: Mapping[str, str] = field(default_factory=dict)
    """Worker id -> filter that dropped it; a few at most."""
    num_unnamed: int = 0
    """Workers of the pool that are in neither."""
    queue_samples: tuple[int, ...] = ()
    """Pairs: milliseconds of this call, and requests that were before it then; empty where none ever was."""

    @property
    def worker(self) -> WorkerRef:
        """The worker that runs the attempt."""
        return self.decode or self.prefill[0]


@record(frozen=True, slots=True, kw_only=True)
class AttemptReport:
    """How one attempt ended."""

    handoff_id: str
    outcome: Outcome
    num_output_tokens: int | None = None
    """Over all choices and attempts; ``None`` when unknown."""


@dataclass(frozen=True, slots=True)
class ServiceTag:
    """Service of a tenant at one placement, in the router's virtual time (``routing.queueing.fairness``)."""

    priority_class: int
    start: float
    """Before this placement; 0 for one that takes no turn of its tenant's."""
    counter: float
    """After it."""


_TAG = re.compile(r":(\d{1,3}):(\d{1,15}\.\d\d):(\d{1,15}\.\d\d)\Z")


def new_handoff_id(router: str, tag: ServiceTag | None = None) -> str:
    """A fresh id such as ``handoff-3f2a...:2:40.00:72.00@inc-77b1...``; a worker learns from it whose placements come.

    Args:
        router: incarnation of the router that places the request.
        tag: for the routers that stand by.
    """
    told = "" if tag is None else f":{tag.priority_class}:{max(0.0, tag.start):.2f}:{max(0.0, tag.counter):.2f}"
    return f"{new_id('handoff')}{told}@{router}"


def router_of(handoff_id: str) -> str:
    """The router that placed the request; empty when the id does not say."""
    return handoff_id.partition("@")[2]


def service_tag_of(handoff_id: str) -> ServiceTag | None:
    """Service of its tenant as the id tells it; ``None`` where it tells nothing."""
    found = _TAG.search(handoff_id.partition("@")[0])
    return None if found is None else ServiceTag(int(found[1]), float(found[2]), float(found[3]))
