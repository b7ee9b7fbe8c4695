"""A process that tries grammars, so that a hostile one costs this process and no other.

    stdin   one JSON line per grammar: {"kind", "text"}
    stdout  first line {"ready": true}, then one line per grammar: {"problem"}, empty when there is none

A grammar is compiled and its first mask filled in a thread with a stack much smaller than that of the threads which
will use it, within bounds on CPU time and memory.  A grammar that exceeds them ends the process: nothing is left to
clean up, and the parent refuses the grammar.  The process ends with its stdin.
"""

from __future__ import annotations

import ctypes
import json
import math
import resource
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from llguidance import LLTokenizer

from stratos.common.errors import BadRequest
from stratos.core.requests.grammar import TOO_COMPLEX, GrammarKind, GrammarSpec
from stratos.text.grammar import brief_error, compile_grammar, make_grammar_tokenizer

STACK_BYTES = 1 << 20
"""Enough for some hundreds of levels; the threads of a worker have 2 to 8 MiB."""
CPU_S = 1
"""The kernel counts in seconds: a grammar gets between this and one more."""
MAX_MASK_S = 0.1
MEMORY_BYTES = 1 << 30
"""Address space on top of that of a process without a grammar."""


def problem_of(spec: GrammarSpec, tokenizer: LLTokenizer, vocab_size: int) -> str:
    """Fault of a grammar; empty when there is none."""
    row = (ctypes.c_int32 * ((vocab_size + 31) // 32))()
    try:
        matcher = compile_grammar(spec, tokenizer)
    except BadRequest as error:
        return error.message
    begin = time.thread_time()
    matcher.unsafe_compute_mask_ptr(ctypes.addressof(row), ctypes.sizeof(row))
    if time.thread_time() - begin > MAX_MASK_S:
        return TOO_COMPLEX
    if matcher.is_error():
        is_empty = "NoExtension" in str(matcher.get_error())
        return "the grammar allows no output" if is_empty else f"{TOO_COMPLEX}: {brief_error(matcher)}"
    return ""


def serve(model_path: Path, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
    """Answer until stdin ends."""
    definition = (model_path / "tokenizer.json").read_text(encoding="utf-8")
    tokenizer = make_grammar_tokenizer(definition, vocab_size, eos_token_ids)
    threading.stack_size(STACK_BYTES)
    _limit_memory()
    _answer({"ready": True})
    for line in sys.stdin.buffer:
        wanted = json.loads(line)
        _limit_cpu()
        spec, problems = GrammarSpec(GrammarKind(wanted["kind"]), wanted["text"]), list[str]()
        thread = threading.Thread(target=lambda s=spec, p=problems: p.append(problem_of(s, tokenizer, vocab_size)))
        thread.start()
        thread.join()
        _answer({"problem": problems[0] if problems else TOO_COMPLEX})


def _limit_cpu() -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(used.ru_utime + used.ru_stime) + CPU_S, hard))


def _limit_memory() -> None:
    num_pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (num_pages * resource.getpagesize() + MEMORY_BYTES, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _answer(message: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    serve(Path(sys.argv[1]), int(sys.argv[2]), [int(token_id) for token_id in sys.argv[3:]])
