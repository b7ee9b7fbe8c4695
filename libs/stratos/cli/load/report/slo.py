"""Promised latencies of each request; requests that keep all of them are good, and their rate is the goodput."""

from __future__ import annotations

import math
from dataclasses import dataclass

from stratos.cli.load.measured import MeasuredRequest
from stratos.common.errors import BadRequest

_FORM = "ttft=MS,itl=MS,e2e=MS with one of them at least, such as ttft=400,itl=35"


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyPromise:
    """Milliseconds; ``None`` promises nothing."""

    ttft_ms: float | None = None
    itl_ms: float | None = None
    """Mean over the tokens of a request: how a server cuts tokens into events does not count."""
    e2e_ms: float | None = None

    def is_kept(self, request: MeasuredRequest) -> bool:
        """Whether the request has its whole answer, and in time."""
        if not request.is_completed:
            return False
        measured = (
            (self.ttft_ms, request.ttft_s), (self.itl_ms, request.tpot_s or 0.0), (self.e2e_ms, request.e2e_s)
        )  # fmt: skip
        return all(promised is None or 1e3 * found_s <= promised for promised, found_s in measured)


def parse_slo(text: str) -> LatencyPromise | None:
    """Read ``--slo``; empty is none. Raises ``BadRequest``."""
    if not text:
        return None
    parts, promised = text.split(","), dict[str, float]()
    for part in parts:
        name, _, value = part.strip().partition("=")
        try:
            promised[f"{name}_ms"] = float(value)
        except ValueError:
            raise BadRequest(f"--slo must be {_FORM}, not {text!r}", param="--slo") from None
    is_known = promised.keys() <= set(LatencyPromise.__dataclass_fields__)
    is_form = is_known and len(promised) == len(parts) and all(0 < ms < math.inf for ms in promised.values())
    if not is_form:
        raise BadRequest(f"--slo must be {_FORM}, not {text!r}", param="--slo")
    return LatencyPromise(**promised)
