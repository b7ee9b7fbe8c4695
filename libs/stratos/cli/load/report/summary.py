"""All figures of a run."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from stratos.cli.load.measured import LoadResult, MeasuredRequest
from stratos.cli.load.report.client import ClientVerdict, client_verdict
from stratos.cli.load.report.percentiles import Distribution, distribution
from stratos.cli.load.report.slo import LatencyPromise


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadFigures:
    """Requests of a run, or of a part of it; latencies in milliseconds."""

    duration_s: float
    num_completed: int
    num_failed: int
    num_good: int | None
    """Requests that kept the promise; ``None`` where none was made."""
    num_prompt_tokens: int
    num_output_tokens: int
    ttft: Distribution
    tpot: Distribution
    """Time per output token of each request, after its first one."""
    itl: Distribution
    """Gaps between events that carried output, of all requests together."""
    e2e: Distribution

    @property
    def requests_per_s(self) -> float:
        """Completed ones."""
        return self._per_s(self.num_completed)

    @property
    def goodput_per_s(self) -> float | None:
        """Requests that kept the promise."""
        return None if self.num_good is None else self._per_s(self.num_good)

    @property
    def output_tokens_per_s(self) -> float:
        """Tokens of completed requests."""
        return self._per_s(self.num_output_tokens)

    @property
    def good_share(self) -> float | None:
        """Share of all requests, refused ones too, that kept the promise."""
        num_all = self.num_completed + self.num_failed
        return None if self.num_good is None or not num_all else self.num_good / num_all

    def _per_s(self, count: int) -> float:
        return count / self.duration_s if self.duration_s else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """A run as it is reported."""

    all: LoadFigures
    by_tenant: Mapping[str, LoadFigures]
    by_class: Mapping[str, LoadFigures]
    by_model: Mapping[str, LoadFigures]
    """Parts are empty where there is only one."""
    refusals: Mapping[str, int]
    """Failed requests by status and reason, the most frequent first."""
    client: ClientVerdict
    peak_output_tokens_per_s: float
    """Events with output in the busiest second."""
    peak_open: int
    """Requests that were open at once, at most."""


def load_report(result: LoadResult, promise: LatencyPromise | None) -> LoadReport:
    """Sum up a run."""
    found = load_figures(result.requests, result.duration_s, promise)

    def parts(name: Callable[[MeasuredRequest], str]) -> dict[str, LoadFigures]:
        groups: dict[str, list[MeasuredRequest]] = {}
        for request in result.requests:
            groups.setdefault(name(request), []).append(request)
        if len(groups) < 2:
            return {}
        return {key: load_figures(groups[key], result.duration_s, promise) for key in sorted(groups)}

    return LoadReport(
        all=found,
        by_tenant=parts(lambda request: request.session.sender.name),
        by_class=parts(lambda request: request.session.sender.class_name),
        by_model=parts(lambda request: request.session.model),
        refusals=dict(Counter(r.answer.failure for r in result.requests if r.answer.failure).most_common()),
        client=client_verdict(result, found.ttft, found.tpot),
        peak_output_tokens_per_s=_peak_per_s(result.requests),
        peak_open=_peak_open(result.requests),
    )


def load_figures(requests: Sequence[MeasuredRequest], duration_s: float, promise: LatencyPromise | None) -> LoadFigures:
    """Figures of some requests of a run that lasted so long."""
    done = [request for request in requests if request.is_completed]
    return LoadFigures(
        duration_s=duration_s,
        num_completed=len(done),
        num_failed=len(requests) - len(done),
        num_good=None if promise is None else sum(promise.is_kept(request) for request in done),
        num_prompt_tokens=sum(request.num_prompt_tokens for request in done),
        num_output_tokens=sum(request.num_output_tokens for request in done),
        ttft=_in_ms(request.ttft_s for request in done),
        tpot=_in_ms(tpot_s for request in done if (tpot_s := request.tpot_s) is not None),
        itl=_in_ms(itertools.chain.from_iterable(request.gaps_s for request in done)),
        e2e=_in_ms(request.e2e_s for request in done),
    )


def _in_ms(seconds: Iterable[float]) -> Distribution:
    return distribution(1e3 * one for one in seconds)


def _peak_per_s(requests: Iterable[MeasuredRequest]) -> float:
    seconds = Counter(int(time_s) for request in requests for time_s in request.answer.token_times_s)
    return float(max(seconds.values(), default=0))


def _peak_open(requests: Iterable[MeasuredRequest]) -> int:
    changes = []
    for request in requests:
        times = request.answer.token_times_s
        changes += [(request.answer.sent_s, 1), (times[-1] if times else request.answer.sent_s, -1)]
    return max(itertools.accumulate(change for _, change in sorted(changes)), default=0)
