"""Flags of ``stratos bench`` that say what is sent, and the plan of a run that they make."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from stratos.cli.load.client.run import RunPlan
from stratos.cli.load.client.target import Target
from stratos.cli.load.report.slo import LatencyPromise, parse_slo
from stratos.cli.load.traces.replay import Replay, check_replay, replayed
from stratos.cli.load.workload.arrivals import Arrivals, ClosedLoop, TraceArrivals, parse_arrivals
from stratos.cli.load.workload.lengths import parse_lengths
from stratos.cli.load.workload.prompts import FIRST_TOKEN
from stratos.cli.load.workload.senders import Sender, parse_models, read_senders
from stratos.cli.load.workload.sessions import PlannedSession, Workload, first_requests, sessions
from stratos.common.errors import BadRequest

OPEN_LOOP_S = 60.0
"""Duration of an open loop that has no bound of its own."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """Requests to send, to whom, and for how long."""

    requests: Annotated[int, typer.Option(help="Requests in all; default: by the arrivals.")] = 0
    duration: Annotated[
        float, typer.Option(help="Seconds after which no session begins; default: by the arrivals.")
    ] = 0
    prompt_tokens: Annotated[
        str, typer.Option(help="TOKENS, uniform:LEAST,MOST, lognormal:MEDIAN,SIGMA[,MOST] or table:FILE.")
    ] = "128"
    output_tokens: Annotated[str, typer.Option(help="The same, of answers.")] = "64"
    shared_prefixes: Annotated[
        str, typer.Option(help="COUNT,TOKENS: each session begins with one of so many prefixes.")
    ] = ""
    turns: Annotated[str, typer.Option(help="Turns of a session, in the forms of --prompt-tokens.")] = "1"
    think_s: Annotated[float, typer.Option(min=0, help="Mean pause before a later turn.")] = 1.0
    tenants: Annotated[
        Path | None, typer.Option(help="JSON list of tenants that send: name, key, and class and weight.")
    ] = None
    warm_up: Annotated[int, typer.Option(min=0, help="Requests that are sent before and not counted.")] = 0
    slo: Annotated[str, typer.Option(help="Promised ms, such as ttft=400,itl=35: goodput counts who keeps it.")] = ""
    seed: Annotated[
        int, typer.Option(help="Of everything drawn; a new one for each run, or a prefix cache answers.")
    ] = 0
    trace_speed: Annotated[float, typer.Option(help="Above 1 the arrivals of a trace come closer together.")] = 1.0
    vocab_size: Annotated[int, typer.Option(help="Prompt ids are drawn below this.")] = 4096
    api: Annotated[str, typer.Option(help="completions (token ids) or chat (words).")] = "completions"
    ignore_eos: Annotated[bool, typer.Option(help="Answers have the drawn length; not every server knows it.")] = True
    extra_body: Annotated[str, typer.Option(help="JSON object of more fields for each request.")] = ""
    key: str = "none"
    """Key of the one tenant that sends without ``tenants``."""
    models: tuple[str, ...] = ("base",)
    """Names and weights, in the form of ``--model``."""

    def __post_init__(self) -> None:
        """Refuse what makes no sense, before anything is sent."""
        for name in ("requests", "duration", "trace_speed", "think_s"):
            if getattr(self, name) < 0 or not math.isfinite(getattr(self, name)):
                raise BadRequest(f"--{name.replace('_', '-')} must not be below 0", param=name)
        if not self.trace_speed:
            raise BadRequest("--trace-speed must be above 0", param="trace_speed")
        if self.vocab_size <= FIRST_TOKEN:
            raise BadRequest(f"--vocab-size must be above {FIRST_TOKEN}", param="vocab_size")
        if self.api not in ("completions", "chat"):
            raise BadRequest(f"--api must be completions or chat, not {self.api!r}", param="api")

    @property
    def promise(self) -> LatencyPromise | None:
        """The promised latencies; ``None`` promises nothing."""
        return parse_slo(self.slo)

    def target(self, base_url: str) -> Target:
        """The server, and how it is asked; raises ``BadRequest``."""
        try:
            extra: Any = json.loads(self.extra_body or "{}")
        except ValueError:
            extra = None
        if not isinstance(extra, dict):
            raise BadRequest("--extra-body must be a JSON object", param="extra_body")
        if not _is_url(base_url):
            raise BadRequest(f"--url must be http:// or https:// with a host, not {base_url!r}", param="url")
        return Target(
            base_url=base_url.rstrip("/"), is_chat=self.api == "chat", vocab_size=self.vocab_size,
            ignores_eos=self.ignore_eos, extra=extra,
        )  # fmt: skip

    def senders(self) -> tuple[Sender, ...]:
        """Who sends; raises ``BadRequest``."""
        return (Sender(key=self.key),) if self.tenants is None else read_senders(self.tenants)

    def workload(self) -> Workload:
        """Lengths, prefixes, sessions and senders; raises ``BadRequest``."""
        num_prefixes, prefix_tokens = _prefixes(self.shared_prefixes)
        return Workload(
            prompt=parse_lengths(self.prompt_tokens, "--prompt-tokens"),
            output=parse_lengths(self.output_tokens, "--output-tokens"),
            num_prefixes=num_prefixes, prefix_tokens=prefix_tokens, prefix_seed=f"{self.seed}/prefix",
            turns=parse_lengths(self.turns, "--turns"), think_s=self.think_s,
            senders=self.senders(), models=parse_models(self.models),
        )  # fmt: skip


def run_plan_of(options: LoadOptions, arrivals: str) -> RunPlan:
    """The plan of one run.

    Args:
        options: what is sent.
        arrivals: one ``--arrivals``; two of them never send the same prompts.

    Raises:
        BadRequest: a flag makes no sense, or a line of a file is wrong.
    """
    parsed, workload, seed = parse_arrivals(arrivals), options.workload(), f"{options.seed}/{arrivals}"
    warm_up = first_requests(sessions(workload, None, f"{seed}/warm-up"), options.warm_up)
    if isinstance(parsed, TraceArrivals):
        replay = Replay(path=parsed.path, senders=workload.senders, models=workload.models, speed=options.trace_speed)
        check_replay(replay)
        found = replayed(replay, str(options.seed))
        if options.requests:
            found = itertools.islice(found, options.requests)
        return RunPlan(sessions=found, duration_s=options.duration or math.inf, warm_up=warm_up)
    return _generated(options, parsed, workload, seed, warm_up)


def _generated(
    options: LoadOptions,
    arrivals: ClosedLoop | Arrivals,
    workload: Workload,
    seed: str,
    warm_up: Iterator[PlannedSession],
) -> RunPlan:
    closed = arrivals if isinstance(arrivals, ClosedLoop) else None
    num_requests, duration_s = options.requests, options.duration or math.inf
    if not num_requests and math.isinf(duration_s):
        if closed is not None:
            num_requests = max(6, 3 * closed.num_streams)
        else:
            duration_s = OPEN_LOOP_S
    found = sessions(workload, None if isinstance(arrivals, ClosedLoop) else arrivals, seed)
    if num_requests:
        found = first_requests(found, num_requests)
    return RunPlan(sessions=found, closed=closed, duration_s=duration_s, warm_up=warm_up)


def _is_url(text: str) -> bool:
    """It has a host, and a port that is a number if it has one."""
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _prefixes(text: str) -> tuple[int, int]:
    if not text:
        return 0, 0
    count, _, tokens = text.partition(",")
    if not (count.isdigit() and tokens.isdigit() and int(count) and int(tokens)):
        raise BadRequest(f"--shared-prefixes must be COUNT,TOKENS, not {text!r}", param="--shared-prefixes")
    return int(count), int(tokens)
