"""The engine workloads that the ablations measure: each drives an engine core and returns one figure.

An engine here is a scheduler with a runner in this process: no tokenizer, gRPC or HTTP.  Prompts are random and never
repeat, except where a workload is about repetition.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from stratos.core.adapter import AdapterRef
from stratos.core.requests.grammar import GrammarKind, GrammarSpec
from stratos.core.requests.records import ChoiceState, EngineRequest, RequestKey
from stratos.core.requests.sampling_params import SamplingParams
from stratos.core.requests.terms import RequestTerms
from stratos.engine.core import EngineCore

NUM_ADAPTERS = 4
WORDS = GrammarSpec(GrammarKind.REGEX, "([a-z]{3,9} ){200}")


@dataclass(frozen=True, slots=True)
class Workload:
    """Drive of an engine, and how to read its figure."""

    run: Callable[[EngineCore, random.Random], float]
    unit: str
    is_higher_better: bool


def request(
    rng: random.Random,
    prompt: list[int],
    num_output: int,
    *,
    adapter_digest: str = "",
    grammar: GrammarSpec | None = None,
    top_p: float | None = None,
) -> EngineRequest:
    """A request of exactly ``num_output`` tokens, greedy or at temperature 1 with ``top_p``."""
    how = SamplingParams(max_tokens=num_output, ignore_eos=True, grammar=grammar, temperature=0.0)
    return EngineRequest(
        key=RequestKey(f"{rng.getrandbits(64):x}", 0),
        prompt_ids=tuple(prompt),
        choices=(ChoiceState(index=0),),
        sampling=how if top_p is None else replace(how, temperature=1.0, top_p=top_p),
        seed=0,
        terms=RequestTerms(adapter=AdapterRef(digest=adapter_digest)),
    )


def tokens(engine: EngineCore, rng: random.Random, count: int) -> list[int]:
    """Random token ids."""
    return [rng.randrange(10, engine.info.vocab_size) for _ in range(count)]


def run_out(engine: EngineCore) -> int:
    """Step until nothing is left; returns the tokens sampled."""
    count = 0
    while engine.has_work:
        result = engine.step()
        if result.errors:
            raise RuntimeError(f"a request failed: {next(iter(result.errors.values()))}")
        count += sum(len(output.token_ids) for output in result.outputs)
    return count


def decode(
    batch: int,
    *,
    num_prompt: int = 128,
    grammar: GrammarSpec | None = None,
    num_adapters: int = 0,
    top_p: float | None = None,
) -> Workload:
    """Output tokens per second of ``batch`` streams, ``num_prompt`` tokens in and 32 out, prompts not counted.

    With ``num_adapters`` the streams take turns with as many of the engine's adapters.
    """

    def run(engine: EngineCore, rng: random.Random) -> float:
        adapters = engine.status().resident_adapters[:num_adapters] or ("",)
        for index in range(batch):
            digest = adapters[index % len(adapters)]
            prompt = tokens(engine, rng, num_prompt)
            engine.add(request(rng, prompt, 33, adapter_digest=digest, grammar=grammar, top_p=top_p))
        started = 0
        while started < batch:
            started += sum(output.offset == 0 for output in engine.step().outputs)
        begin = time.perf_counter()
        return run_out(engine) / (time.perf_counter() - begin)

    return Workload(run, f"tokens/s, {batch} streams" + f" at {num_prompt}" * (num_prompt != 128), True)


def prefill(engine: EngineCore, rng: random.Random) -> float:
    """Milliseconds to the first token of a prompt of 1024 tokens."""
    engine.add(request(rng, tokens(engine, rng, 1024), 1))
    begin = time.perf_counter()
    run_out(engine)
    return 1e3 * (time.perf_counter() - begin)


def shared_prefix(engine: EngineCore, rng: random.Random) -> float:
    """Milliseconds per request of 8 requests, one after another, that share 512 of their 528 prompt tokens."""
    prefix = tokens(engine, rng, 512)
    begin = time.perf_counter()
    for _ in range(8):
        engine.add(request(rng, prefix + tokens(engine, rng, 16), 2))
        run_out(engine)
    return 1e3 * (time.perf_counter() - begin) / 8


def ragged(engine: EngineCore, rng: random.Random) -> float:
    """Output tokens per second of 24 requests with 4 to 96 output tokens each."""
    for index in range(24):
        engine.add(request(rng, tokens(engine, rng, 32), 4 + index * 37 % 93))
    begin = time.perf_counter()
    return run_out(engine) / (time.perf_counter() - begin)


def intruder(engine: EngineCore, rng: random.Random) -> float:
    """Longest gap, in milliseconds, between tokens of 4 running streams while a prompt of 2048 tokens arrives.

    The streams run until the prompt has its token, however small its chunks are, and are aborted then.
    """
    streams = [request(rng, tokens(engine, rng, 32), 1500) for _ in range(4)]
    for stream in streams:
        engine.add(stream)
    for _ in range(24):
        engine.step()  # the cost model of steps, if it is asked, has seen decodes
    prompt = request(rng, tokens(engine, rng, 2048), 1)
    engine.add(prompt)
    longest, last, is_done = 0.0, time.perf_counter(), False
    while not is_done:
        outputs, now = engine.step().outputs, time.perf_counter()
        if outputs:
            longest, last = max(longest, now - last), now
        is_done = any(output.key == prompt.key for output in outputs)
    for stream in streams:
        engine.abort(stream.key)
    run_out(engine)
    return 1e3 * longest


def behind_long(engine: EngineCore, rng: random.Random) -> float:
    """Milliseconds to the first token of 20 tokens that come while a prompt of 1536 tokens computes."""
    long = request(rng, tokens(engine, rng, 1536), 1)
    engine.add(long)
    engine.step()
    short = request(rng, tokens(engine, rng, 20), 1)
    engine.add(short)
    begin = time.perf_counter()
    while not any(output.key == short.key for output in engine.step().outputs):
        pass
    elapsed = time.perf_counter() - begin
    run_out(engine)
    return 1e3 * elapsed


def prompts_mixed(engine: EngineCore, rng: random.Random) -> float:
    """Prompt tokens per second of 12 prompts of 20 to 1536 tokens."""
    sizes = [20, 200, 1536] * 4
    for size in sizes:
        engine.add(request(rng, tokens(engine, rng, size), 1))
    begin = time.perf_counter()
    run_out(engine)
    return sum(sizes) / (time.perf_counter() - begin)


WORKLOADS: dict[str, Workload] = {
    "decode-1": decode(1),
    "decode-8": decode(8),
    "sampled-8": decode(8, top_p=0.95),
    "decode-32": decode(32),
    "decode-8-at-1024": decode(8, num_prompt=1024),
    "constrained-8": decode(8, grammar=WORDS),
    "adapters-8": decode(8, num_adapters=NUM_ADAPTERS),
    "prefill-1024": Workload(prefill, "ms to the first token, 1024 in", False),
    "shared-prefix": Workload(shared_prefix, "ms per request, 512 of 528 tokens shared", False),
    "ragged": Workload(ragged, "tokens/s, 24 requests of unequal length", True),
    "behind-long": Workload(behind_long, "ms to the first token of 20, beside 1536", False),
    "prompts-mixed": Workload(prompts_mixed, "prompt tokens/s, 12 prompts of 20 to 1536", True),
    "intruder": Workload(intruder, "ms, longest gap while 2048 tokens arrive", False),
}
