"""Settings of the router, read from ``STRATOS_ROUTER_*``."""

from __future__ import annotations

from pydantic import field_validator

from stratos.routing.settings import (
    AdmissionSettings,
    BookingSettings,
    LivenessSettings,
    QueueSettings,
    ScorerWeights,
)
from stratos.rpc.settings import ServiceSettings
from stratos_router.discovery import open_discovery


class RouterSettings(ServiceSettings):
    """Where workers are found, and the numbers of the routing rules."""

    env_prefix = "STRATOS_ROUTER_"

    discovery: str
    """"file:///path/workers.json", re-read when it changes, or "static://decode@host:port,prefill@host:port"."""
    discovery_interval_s: float = 0.2
    """How often the file is looked at; a rewrite is noticed by modification time, size and inode."""

    status_interval_ms: int = 100
    """Longest silence asked of a worker's status stream; short, because placement is as good as its view."""
    redial_after_s: float = 5.0
    """A stream that has been silent for so long is opened again; the worker is out well before that."""
    silent_after_s: float = 1.5
    """A worker without a status for so long is out: 3 s is promised, stop to out."""
    hung_after_s: float = 2.0
    """A worker whose step counter stands still for so long while it computes is out (at least 4 of its slow steps)."""

    queue_ttl_s: float = 30.0
    """Longest wait of a new request."""
    recovery_ttl_s: float = 30.0
    """Longest wait of a stream that has to move."""
    max_queued_requests: int = 1024
    """Per (model, class); the next one is refused at once."""
    max_queued_tokens: int = 8 * 1024 * 1024
    """Prompt tokens per (model, class)."""
    num_priority_classes: int = 4
    """Classes 0 (most urgent) to n-1; a request of a lower class counts as the lowest."""
    ageing_step_s: float = 2.0
    """One class up at this age and at each further step."""
    hold_after_s: float = 1.0
    """A request that has waited this long for room lets no request of its class or below pass."""

    kv_mark: float = 0.90
    """Share of a KV pool that admission may fill; 1.0 relies on preemption alone."""
    default_output_tokens: int = 256
    """Stands for the p90 output length of a model before enough requests have ended."""
    max_waiting_per_worker: int = 2
    """Sequences beyond ``max_num_seqs`` that a worker is given; the backlog itself waits here, where it is fair."""
    booking_confirm_s: float = 5.0
    """Bookings older than this that a worker does not show have ended without a report."""
    booking_lease_s: float = 900.0
    """Longest life of a booking."""

    weight_queue: float = 2.0
    """Weight of short queues in the score of a worker."""
    weight_free_kv: float = 1.0
    """Weight of free KV blocks."""
    weight_adapter: float = 1.0
    """Weight of having the adapter at hand."""

    @field_validator("discovery")
    @classmethod
    def _check_discovery(cls, value: str) -> str:
        open_discovery(value)
        return value

    def queue_settings(self) -> QueueSettings:
        """Bounds and order of the queues."""
        return QueueSettings(
            num_classes=self.num_priority_classes,
            max_requests=self.max_queued_requests,
            max_tokens=self.max_queued_tokens,
            ttl_s=self.queue_ttl_s,
            recovery_ttl_s=self.recovery_ttl_s,
            ageing_step_s=self.ageing_step_s,
            hold_after_s=self.hold_after_s,
        )

    def admission_settings(self) -> AdmissionSettings:
        """The KV admission rule."""
        return AdmissionSettings(
            kv_mark=self.kv_mark,
            default_output_tokens=self.default_output_tokens,
            max_waiting_per_worker=self.max_waiting_per_worker,
        )

    def liveness_settings(self) -> LivenessSettings:
        """When a worker is out."""
        return LivenessSettings(silent_after_s=self.silent_after_s, hung_after_s=self.hung_after_s)

    def booking_settings(self) -> BookingSettings:
        """How long bookings live."""
        return BookingSettings(confirm_s=self.booking_confirm_s, lease_s=self.booking_lease_s)

    def weights(self) -> ScorerWeights:
        """Weights of the scorers."""
        return ScorerWeights(queue=self.weight_queue, free_kv=self.weight_free_kv, adapter=self.weight_adapter)
