"""Cost of tool calls: a chunk of a call against a chunk of text, and streams that obey a grammar against free ones.

    python -m scripts.bench.tool_cost --out benchmarks/results/tool-cost-2core-cpu.json

CPU time of one thread, the arms by turns.  ``render`` is what a gateway does with the text of a chunk: parse it, and
write the event; every chunk is one token of the answer.  ``engine`` is a token of 32 streams of the model, whose
answers are calls of a strict tool in the syntax of Hermes, or anything; prompts and first tokens are not counted.  Its
arms are both without drafts, strict ones with every forced token's mask computed for each stream, and both with drafts,
as a platform serves them.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

from scripts.bench.harness import MODEL, by_turns, flag, run_bench, table
from scripts.bench.workloads import request, run_out, tokens
from stratos.core.requests.grammar import GrammarSpec, calls_grammar
from stratos.core.requests.tools import Tool, ToolMode, ToolUse
from stratos.engine.core import EngineCore
from stratos.engine.runner.torch_runner import TorchRunner
from stratos.engine.settings import RunnerConfig, SchedulerConfig
from stratos.engine.speculation.making import make_proposer
from stratos.engine.switches import SchedulerSwitches
from stratos.text.output.call_grammar import call_grammar, enforced_schemas
from stratos.text.output.parser import OutputShape
from stratos.text.output.syntaxes.hermes import HERMES
from stratos.text.tokenizer import Tokenizer
from stratos_gateway.openai.answers import ChatRenderer
from stratos_gateway.openai.chat_events import EventRenderer
from stratos_gateway.openai.chunks import ChoiceChunk
from stratos_gateway.openai.rendering import Answer

STREAMS, PROMPT_TOKENS, CHUNKS = 32, 64, 4_000
_NOTES = {"type": "array", "items": {"type": "string"}, "minItems": 400}
TOOL = Tool(
    "note", parameters={"type": "object", "properties": {"notes": _NOTES}, "required": ["notes"]}, is_strict=True
)
SHAPE = OutputShape(syntax=HERMES)
ANSWER: dict[str, Any] = {
    "id": "chatcmpl-1", "created": 1, "model": "base", "num_logprobs": None, "num_prompt_logprobs": None,
    "echoes_logprobs": False, "return_token_ids": False, "include_usage": False, "prompts": ((1,),), "num_choices": 1,
}  # fmt: skip
OPENING = '<tool_call>\n{"name": "note", "arguments": {"notes": ["'


def render_us(make: Callable[[], ChatRenderer], opening: str) -> float:
    """Microseconds of a chunk in the middle of a stream."""
    renderer = make()
    renderer.stream_part([ChoiceChunk(0, opening, [7], [], None, is_first=True)])
    chunks = [ChoiceChunk(0, f" word{number % 10}", [7], [], None, is_first=False) for number in range(CHUNKS)]
    begin = time.thread_time()
    for chunk in chunks:
        renderer.stream_part([chunk])
    return (time.thread_time() - begin) / CHUNKS * 1e6


def renderers(tokenizer: Tokenizer) -> dict[str, Callable[[int], float]]:
    """Arms of ``render``."""

    def text() -> ChatRenderer:
        return ChatRenderer(Answer(**ANSWER), tokenizer)

    def call() -> ChatRenderer:
        return EventRenderer(Answer(**ANSWER, shape=SHAPE), tokenizer)

    return {
        "text": lambda turn: render_us(text, "Well"),
        "text beside tools": lambda turn: render_us(call, "Well"),
        "call": lambda turn: render_us(call, OPENING),
    }


def strict_grammar() -> GrammarSpec:
    """Calls of the tool, and nothing else."""
    use = ToolUse(tools=(TOOL,), mode=ToolMode.REQUIRED)
    return calls_grammar(call_grammar(use, SHAPE, {}), enforced_schemas(use), "tools")


def token_us(engine: EngineCore, grammar: GrammarSpec | None, num_output: int, seed: int) -> float:
    """Microseconds of a token."""
    rng = random.Random(seed)
    for _ in range(STREAMS):
        engine.add(request(rng, tokens(engine, rng, PROMPT_TOKENS), num_output, grammar=grammar, top_p=0.95))
    started = 0
    while started < STREAMS:
        started += sum(output.offset == 0 for output in engine.step().outputs)
    begin = time.process_time()
    count = run_out(engine)
    return (time.process_time() - begin) / count * 1e6


def engine_of(*, has_drafts: bool, is_shared: bool = True) -> EngineCore:
    """An engine over a runner of its own."""
    switches = SchedulerSwitches(shared_forced_tokens=is_shared)
    config = SchedulerConfig(max_num_seqs=STREAMS, switches=switches)
    runner = TorchRunner.load(RunnerConfig(model_path=MODEL))
    return EngineCore(runner, config, proposer=make_proposer(config, runner) if has_drafts else None)


def by_round(free: list[float], strict: list[float]) -> float:
    """Median of the ratios within each round, whose runs saw the same machine."""
    return statistics.median(one / other for one, other in zip(free, strict, strict=True))


def bench(args: argparse.Namespace) -> dict[str, Any]:
    """All arms."""
    tokenizer = Tokenizer.load(MODEL)
    arms = renderers(tokenizer)
    rendered = by_turns(args.rounds * 3, arms, lambda arm, turn: arms[arm](turn))
    strict = strict_grammar()
    plain, drafting = engine_of(has_drafts=False), engine_of(has_drafts=True)
    engines: dict[str, tuple[EngineCore, GrammarSpec | None]] = {
        "free": (plain, None),
        "strict": (plain, strict),
        "strict, every mask computed": (engine_of(has_drafts=False, is_shared=False), strict),
        "free, drafts": (drafting, None),
        "strict, drafts": (drafting, strict),
    }
    for engine, grammar in engines.values():
        token_us(engine, grammar, 4, -1)
    ran = by_turns(args.rounds, engines, lambda arm, turn: token_us(*engines[arm], args.tokens, turn))
    render = {arm: statistics.median(found) for arm, found in rendered.items()}
    run = {arm: statistics.median(found) for arm, found in ran.items()}
    chunk_us = args.chunk_us
    whole = {arm: chunk_us - render["text"] + found for arm, found in render.items()}
    ratio = {
        "call to text, a whole chunk": whole["call"] / whole["text"],
        "text beside tools to text, a whole chunk": whole["text beside tools"] / whole["text"],
        "strict to free, tokens a second": by_round(ran["free"], ran["strict"]),
        "the same, every mask computed": by_round(ran["free"], ran["strict, every mask computed"]),
        "the same, drafts": by_round(ran["free, drafts"], ran["strict, drafts"]),
    }
    cells = [(f"render, {arm}", "us", f"{found:.2f}") for arm, found in render.items()]
    cells += [(f"engine, {arm}", "us", f"{found:.1f}") for arm, found in run.items()]
    cells += [(name, "", f"{found:.3f}") for name, found in ratio.items()]
    return {
        "streams": STREAMS,
        "tokens": args.tokens,
        "chunk_us": chunk_us,
        "render_us": {arm: [round(one, 3) for one in found] for arm, found in rendered.items()},
        "engine_token_us": {arm: [round(one, 2) for one in found] for arm, found in ran.items()},
        "ratio": {name: round(found, 3) for name, found in ratio.items()},
        "table": table(("what", "", "median"), cells),
    }


if __name__ == "__main__":
    run_bench(
        __doc__,
        bench,
        flag("--rounds", type=int, default=25),
        flag("--tokens", type=int, default=48, help="of each stream"),
        flag("--chunk-us", type=float, default=44.0, help="CPU of a whole chunk of text at a gateway, as measured"),
    )
