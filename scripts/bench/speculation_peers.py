"""Measure n-gram speculation of a peer beside ours, server against server: the same model and prompts, by turns.

    python scripts/demo/widen_model.py models/base /tmp/widened --layers 22
    python -m scripts.bench.speculation_peers --model /tmp/widened --peer-file WIDENED.gguf \\
        --peer llama.cpp --program llama-server --drafting "--spec-type ngram-simple" --out x.json

The peer runs twice, as its drafts cannot be turned off by a request; ours once.  Every round has prompts of its own:
code that repeats its beginning.  A figure is tokens per second from the first token of an answer to its last, the
median of a round's answers; what counts is its ratio with and without drafts, on each side.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scripts.bench.harness import by_turns, flag, run_bench, show
from scripts.bench.peer_servers import running_peer
from scripts.bench.speculation import prompts
from stratos.reproduce.load.local_platform import running_platform

RECEIPT_S, NOT_FOUND = 10.0, 404
VLLM_COUNTERS = "vllm:spec_decode_num_draft_tokens_total", "vllm:spec_decode_num_accepted_tokens_total"


@dataclass(frozen=True, slots=True)
class Server:
    """One arm."""

    url: str
    key: str
    model: str
    extra: dict[str, Any] = field(default_factory=dict)
    """More fields of each request."""
    has_receipts: bool = False
    counters: tuple[str, str] | None = None
    """Names of its metrics of drafted and of accepted tokens, where answers do not tell."""

    def request(self, path: str, body: dict[str, Any] | None = None) -> urllib.request.Request:
        """A request with the key."""
        content = None if body is None else json.dumps(body).encode()
        headers = {"authorization": f"Bearer {self.key}", "content-type": "application/json"}
        return urllib.request.Request(f"{self.url}{path}", data=content, headers=headers)


@dataclass(slots=True)
class Answer:
    """What came back for one prompt."""

    text: str = ""
    times_s: list[float] = field(default_factory=list)
    num_tokens: int = 0
    drafted: int = 0
    accepted: int = 0

    @property
    def tokens_per_s(self) -> float:
        """Behind its first token."""
        return (self.num_tokens - 1) / (self.times_s[-1] - self.times_s[0])


def ask(server: Server, ids: list[int], output: int) -> Answer:
    """Stream one greedy answer of a fixed length."""
    body = {"model": server.model, "prompt": ids, "max_tokens": output, "temperature": 0, "ignore_eos": True,
            "stream": True, "stream_options": {"include_usage": True}, **server.extra}  # fmt: skip
    answer = Answer()
    with urllib.request.urlopen(server.request("/completions", body), timeout=600) as stream:
        for line in stream:
            if line.startswith(b"data: {"):
                _take(answer, json.loads(line[6:]))
        request_id = stream.headers.get("x-request-id", "")
    if server.has_receipts:
        receipt = _receipt(server, request_id)
        answer.drafted, answer.accepted = _found(receipt, "drafted_tokens"), _found(receipt, "accepted_tokens")
    assert answer.num_tokens == output, f"{answer.num_tokens} tokens instead of {output}"
    return answer


def _receipt(server: Server, request_id: str) -> dict[str, Any]:
    """Its receipt, which is written a moment after the answer."""
    end = time.monotonic() + RECEIPT_S
    while True:
        try:
            with urllib.request.urlopen(server.request(f"/requests/{request_id}/receipt"), timeout=60) as shown:
                found: dict[str, Any] = json.load(shown)
                return found
        except urllib.error.HTTPError as error:
            if error.code != NOT_FOUND or time.monotonic() > end:
                raise
            time.sleep(0.05)


def _take(answer: Answer, event: dict[str, Any]) -> None:
    if (text := "".join(choice.get("text") or "" for choice in event.get("choices", ()))) or not answer.times_s:
        answer.text += text
        answer.times_s.append(time.perf_counter())
    if usage := event.get("usage"):
        answer.num_tokens = usage["completion_tokens"]
    timings = event.get("timings") or {}
    answer.drafted = timings.get("draft_n", answer.drafted)
    answer.accepted = timings.get("draft_n_accepted", answer.accepted)


def _found(receipt: Any, name: str) -> int:
    """Sum of a field wherever a receipt has it."""
    if isinstance(receipt, dict):
        return sum(item if key == name else _found(item, name) for key, item in receipt.items())
    return sum(_found(item, name) for item in receipt) if isinstance(receipt, list) else 0


def run_arm(server: Server, turn: int, args: argparse.Namespace) -> list[Answer]:
    """Answers to the prompts of a round, so many streams at once."""
    wanted = prompts(args.load, args.requests * (args.rounds + 1))[args.requests * turn :][: args.requests]
    before = _counted(server)
    with ThreadPoolExecutor(args.streams) as pool:
        answers = list(pool.map(lambda ids: ask(server, ids, args.output), wanted))
    drafted, accepted = (new - old for new, old in zip(_counted(server), before, strict=True))
    answers[0].drafted += drafted
    answers[0].accepted += accepted
    return answers


def _counted(server: Server) -> tuple[int, int]:
    """Drafted and accepted tokens by its metrics."""
    if server.counters is None:
        return 0, 0
    with urllib.request.urlopen(f"{server.url.removesuffix('/v1')}/metrics", timeout=60) as stream:
        lines = [line.decode().split() for line in stream if not line.startswith(b"#")]
    drafted, accepted = (
        sum(int(float(line[-1])) for line in lines if line[0].startswith(name)) for name in server.counters
    )
    return drafted, accepted


def summary(runs: dict[str, list[list[Answer]]]) -> dict[str, Any]:
    """Speeds by arm, and with drafts over without on each side."""
    speeds = {name: [statistics.median(a.tokens_per_s for a in run) for run in found] for name, found in runs.items()}
    result: dict[str, Any] = {name: {"tokens_per_s": [round(s, 1) for s in own]} for name, own in speeds.items()}
    for side in ("ours", "peer"):
        ratios = [on / off for on, off in zip(speeds[f"{side}, drafts"], speeds[side], strict=True)]
        drafting = [answer for run in runs[f"{side}, drafts"] for answer in run]
        plain = [answer for run in runs[side] for answer in run]
        result[f"{side}, drafts"] |= {
            "speedup": round(statistics.median(ratios), 2), "all": [round(ratio, 2) for ratio in ratios],
            "drafted": sum(a.drafted for a in drafting), "accepted": sum(a.accepted for a in drafting),
            "tokens": sum(a.num_tokens for a in drafting),
            "same_texts": sum(a.text == b.text for a, b in zip(drafting, plain, strict=True)), "answers": len(plain),
        }  # fmt: skip
    return result


def bench(args: argparse.Namespace) -> dict[str, Any]:
    """All arms by turns; the round before the first is thrown away."""
    with ExitStack() as stack:
        arms: dict[str, Server] = {}
        for name, more in (("peer", ""), ("peer, drafts", args.drafting)):
            served, log = args.peer_file or args.model, args.peer_log.with_suffix(f".{len(arms)}")
            options = f"{args.peer_more} {more}".split()
            found = running_peer(args.peer, args.program, served, log, threads=args.threads, more=options)
            peer = stack.enter_context(found)
            counters = VLLM_COUNTERS if args.peer == "vllm" and more else None
            arms[name] = Server(peer.url, "none", peer.model, counters=counters)
        own = ("--model", str(args.model), "--threads", str(args.threads), *args.up)
        platform = stack.enter_context(running_platform(*own))
        told = (platform.url, platform.key, args.model.stem)
        arms["ours"] = Server(*told, {"speculation": "off"}, has_receipts=True)
        arms["ours, drafts"] = Server(*told, has_receipts=True)
        runs = by_turns(args.rounds + 1, arms, lambda name, turn: run_arm(arms[name], turn, args))
    result = summary({name: found[1:] for name, found in runs.items()})
    show(result)
    return {"peer": args.peer_name or args.peer, "drafting": args.drafting, "model": args.model.name,
            "load": args.load, "streams": args.streams, "requests": args.requests, "output": args.output,
            "threads": args.threads, "up": args.up, "rounds": args.rounds, "arms": result}  # fmt: skip


if __name__ == "__main__":
    run_bench(
        __doc__,
        bench,
        flag("--model", type=Path, required=True, help="folder or GGUF file, with the shipped tokenizer"),
        flag("--peer", choices=("llama.cpp", "vllm"), required=True),
        flag("--program", type=Path, required=True, help="llama-server or vllm"),
        flag("--peer-file", type=Path, help="what the peer serves, if not --model"),
        flag("--peer-more", default="", help="more arguments of the peer, in one string"),
        flag("--drafting", required=True, help="arguments of the peer that drafts"),
        flag("--peer-log", type=Path, default=Path("/tmp/stratos-peer.log"), help="gets what the peer prints"),
        flag("--peer-name", default="", help="name and version, for the record"),
        flag("--load", default="edit", help="edit, code or random"),
        flag("--threads", type=int, default=2, help="of each side"),
        flag("--streams", type=int, default=1),
        flag("--requests", type=int, default=6, help="of each arm and round"),
        flag("--output", type=int, default=96, help="tokens of an answer"),
        flag("--rounds", type=int, default=3),
        flag("up", nargs="*", help="arguments of `stratos up`, after --"),
    )
