"""A closed-loop load on any OpenAI-compatible server: random prompts, streamed greedy completions of a fixed length.

Every stream keeps one request open until all are done.  Output tokens are counted as asked for (``ignore_eos``), so a
server that puts several tokens into one event is not favoured; ITL is the mean gap from the first event to the last.
Prompts never repeat within a seed, so a prefix cache cannot help.  The client shares the machine with what it measures:
figures are for comparison, not for the record.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import time
from dataclasses import asdict, dataclass

import httpx

from stratos.common.errors import BadRequest, DependencyDown

REQUEST_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSpec:
    """Requests to send, and where."""

    base_url: str
    """Up to and including ``/v1``."""
    model: str
    api_key: str = "none"
    concurrency: int = 1
    num_requests: int = 8
    num_prompt_tokens: int = 128
    num_output_tokens: int = 64
    vocab_size: int = 4096
    """Prompt ids are drawn from [10, vocab_size)."""
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """Figures of one load; times in milliseconds, as a client sees them."""

    concurrency: int
    num_requests: int
    num_prompt_tokens: int
    num_output_tokens: int
    wall_s: float
    output_tokens_per_s: float
    ttft_p50_ms: float
    ttft_max_ms: float
    itl_mean_ms: float

    def as_json(self) -> dict[str, float]:
        """Rounded for reading."""
        return {name: round(value, 3) for name, value in asdict(self).items()}


async def run_load(spec: LoadSpec) -> LoadReport:
    """Send all requests and wait for the last token.

    Raises:
        DependencyDown: the server refused, broke off or could not be reached; names its answer.
    """
    rng = random.Random(spec.seed)
    prompts = [
        [rng.randrange(10, spec.vocab_size) for _ in range(spec.num_prompt_tokens)] for _ in range(spec.num_requests)
    ]
    streams: list[list[float]] = []
    limits = httpx.Limits(max_connections=None)
    headers = {"authorization": f"Bearer {spec.api_key}"}
    async with httpx.AsyncClient(headers=headers, timeout=REQUEST_TIMEOUT_S, limits=limits) as client:

        async def worker() -> None:
            while prompts:
                streams.append(await _stream(client, spec, prompts.pop()))

        began = time.perf_counter()
        try:
            await asyncio.gather(*(worker() for _ in range(spec.concurrency)))
        except httpx.HTTPError as error:
            raise DependencyDown(f"{spec.base_url} does not answer: {error or type(error).__name__}") from error
        wall_s = time.perf_counter() - began
    return _report(spec, streams, wall_s)


async def _stream(client: httpx.AsyncClient, spec: LoadSpec, prompt: list[int]) -> list[float]:
    """Seconds from sending to each event that carries output."""
    body = {
        "model": spec.model, "prompt": prompt, "max_tokens": spec.num_output_tokens, "temperature": 0,
        "ignore_eos": True, "stream": True,
    }  # fmt: skip
    times: list[float] = []
    began = time.perf_counter()
    async with client.stream("POST", f"{spec.base_url}/completions", json=body) as response:
        if response.status_code != 200:
            text = (await response.aread()).decode(errors="replace")
            raise DependencyDown(f"{spec.base_url} answered {response.status_code}: {text[:300]}")
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                times.append(time.perf_counter() - began)
                if line.startswith('data: {"error"'):
                    raise DependencyDown(f"the stream broke off: {json.loads(line[6:])['error']}")
    if not times:
        raise DependencyDown(f"{spec.base_url} sent no token; is it a streaming completions API?")
    return times


def _report(spec: LoadSpec, streams: list[list[float]], wall_s: float) -> LoadReport:
    first = sorted(times[0] for times in streams)
    gaps = [(times[-1] - times[0]) / max(1, spec.num_output_tokens - 1) for times in streams]
    return LoadReport(
        concurrency=spec.concurrency,
        num_requests=spec.num_requests,
        num_prompt_tokens=spec.num_prompt_tokens,
        num_output_tokens=spec.num_output_tokens,
        wall_s=wall_s,
        output_tokens_per_s=spec.num_requests * spec.num_output_tokens / wall_s,
        ttft_p50_ms=1e3 * statistics.median(first),
        ttft_max_ms=1e3 * first[-1],
        itl_mean_ms=1e3 * statistics.mean(gaps),
    )


def load_table(reports: list[LoadReport]) -> str:
    """Lines for a terminal."""
    lines = ["streams  output tok/s  TTFT p50 ms  TTFT max ms  ITL mean ms"]
    lines += [
        f"{r.concurrency:7d}  {r.output_tokens_per_s:12.1f}  {r.ttft_p50_ms:11.1f}  {r.ttft_max_ms:11.1f}"
        f"  {r.itl_mean_ms:11.2f}"
        for r in reports
    ]
    return "\n".join(lines)


def check_spec(spec: LoadSpec) -> LoadSpec:
    """The spec itself; raises ``BadRequest`` where it makes no sense."""
    for name in ("concurrency", "num_requests", "num_prompt_tokens", "num_output_tokens"):
        if getattr(spec, name) < 1:
            raise BadRequest(f"--{name.replace('_', '-')} must be at least 1", param=name)
    if spec.vocab_size <= 10:
        raise BadRequest("--vocab-size must be above 10", param="vocab_size")
    return spec
