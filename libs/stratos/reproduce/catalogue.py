"""Catalogue of all rows, in the order of the report."""

from __future__ import annotations

from dataclasses import dataclass

from stratos.common.errors import BadRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class ReproducedRow:
    """A row by its field name."""

    name: str
    title: str
    module: str
    """Module of ``stratos.reproduce.rows``."""
    full_minutes: float
    """Bound on its work in the full form, for two cores with bf16 instructions; a whole report stops it there."""
    sections: tuple[str, ...] = ()
    """Sections of ``scripts/gpu_check.py``, where a GPU alone can answer."""
    starts_processes: bool = False
    """Services run as processes: its smoke form takes longer, and needs ports."""
    is_paired: bool = False
    """Figures are differences of neighbours in time with an interval: others on the machine widen it."""

    @property
    def needs_gpu(self) -> bool:
        """A GPU of this machine answers, or a committed report of one."""
        return bool(self.sections)


ROWS = (
    ReproducedRow(name="kv-cache", module="cache.kv_cache", full_minutes=1.5, title="Decoding without a KV cache"),
    ReproducedRow(
        name="contiguous-cache",
        module="cache.contiguous_cache",
        full_minutes=2,
        title="No cache, a contiguous one and a paged one",
    ),
    ReproducedRow(
        name="block-table", module="cache.block_table", full_minutes=0.5, title="A block table, walked through"
    ),
    ReproducedRow(
        name="kv-concurrency",
        module="cache.kv_concurrency",
        full_minutes=5,
        title="Unequal requests that one KV pool holds at once",
    ),
    ReproducedRow(
        name="sampling", module="sampling", full_minutes=3, title="Sampling a token against sorting all logits"
    ),
    ReproducedRow(
        name="sampling-quality", module="sampling_quality", full_minutes=1, title="Greedy, temperature, top-k and top-p"
    ),
    ReproducedRow(
        name="continuous-batching",
        module="continuous_batching",
        full_minutes=5,
        title="Static against continuous batching",
    ),
    ReproducedRow(
        name="open-loop",
        module="open_loop",
        full_minutes=11,
        title="Poisson arrivals, overload and shares of the capacity",
    ),
    ReproducedRow(
        name="adapters", module="adapters", full_minutes=7, title="Adapters of one base, 32 active and 1,000 registered"
    ),
    ReproducedRow(
        name="all-on", module="all_on", full_minutes=18, title="Optimisations all off, each on alone, all on"
    ),
    ReproducedRow(
        name="batch-sweep", module="batch_sweep", full_minutes=2, title="Decode speed by batch, and its knee"
    ),
    ReproducedRow(
        name="chunked-prefill", module="chunked_prefill", full_minutes=3, title="A long prompt among running streams"
    ),
    ReproducedRow(
        name="prefill-decode",
        module="fleets.prefill_decode",
        full_minutes=2,
        title="Prompts and answers apart, and one pool",
    ),
    ReproducedRow(
        name="attention", module="attention", full_minutes=1, title="Scores written out against our attention"
    ),
    ReproducedRow(
        name="batch-grid", module="batch_grid", full_minutes=3, title="Prompt, output and batch, by a published grid"
    ),
    ReproducedRow(name="peers", module="peers", full_minutes=4, title="Plain torch and transformers beside our engine"),
    ReproducedRow(
        name="prefix-sharing", module="prefix_sharing", full_minutes=1, title="One prefix of 2,000 tokens for 100 users"
    ),
    ReproducedRow(
        name="queueing", module="queueing", full_minutes=2.5, title="Little's law, and latency by utilisation"
    ),
    ReproducedRow(
        name="replicas", module="fleets.replicas", full_minutes=1, title="One to eight replicas, with their cost"
    ),
    ReproducedRow(name="policies", module="fleets.policies", full_minutes=0.5, title="Placement policies on one fleet"),
    ReproducedRow(
        name="exposed-handoff",
        module="processes.exposed_handoff",
        starts_processes=True,
        is_paired=True,
        full_minutes=6,
        title="A first token's wait for a hand-off, paired",
    ),
    ReproducedRow(
        name="policies-on-processes",
        module="processes.placement",
        starts_processes=True,
        full_minutes=5,
        title="Placement policies on real processes",
    ),
    ReproducedRow(
        name="promises", module="promises", full_minutes=2, title="Promises missed by window, and credits for them"
    ),
    ReproducedRow(
        name="memory-budget",
        module="calculated.memory_budget",
        full_minutes=0.1,
        title="Sequences of 4, 8 and 16 K on one device",
    ),
    ReproducedRow(
        name="failures", module="calculated.failures", full_minutes=0.1, title="Failures, each with the test of it"
    ),
    ReproducedRow(
        name="contradictions",
        module="calculated.contradictions",
        full_minutes=0.1,
        title="Figures that contradict their own inputs",
    ),
    ReproducedRow(
        name="further-claims",
        module="calculated.further_claims",
        full_minutes=0.1,
        title="Figures that no experiment here is about",
    ),
    ReproducedRow(
        name="committed-figures",
        module="calculated.committed_figures",
        full_minutes=0.1,
        title="Claims that committed files answer",
    ),
    ReproducedRow(
        name="sampling-on-gpu",
        module="gpu.sampling",
        sections=("sampling",),
        full_minutes=1.5,
        title="Sampling on the device against logits sent to the host",
    ),
    ReproducedRow(
        name="gpu-utilisation",
        module="gpu.utilisation",
        sections=("decode", "prefill"),
        full_minutes=1,
        title="MBU of decode and MFU of prefill on a GPU",
    ),
)


def find_row(name: str) -> ReproducedRow:
    """The row of that name. Raises ``BadRequest`` that lists all."""
    for row in ROWS:
        if row.name == name:
            return row
    raise BadRequest(f"no row {name!r}; rows are {', '.join(row.name for row in ROWS)}", param="row")
