"""Placement policies on real processes: gateway, router and workers of ``stratos up``, questions about documents.

Every policy gets a platform of its own and the same questions in the same order: a document of many tokens and a few of
its own.  A worker's KV holds a part of the documents, all workers together hold all.  A fixed number of clients sends
the next question when the last one is answered; an answer is one token, so its time is that of the first token.
Questions about one document name one session, which is what ``session_affinity`` goes by.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from random import Random
from statistics import median
from urllib.parse import urlsplit

from stratos.calculators.memory.kv import KvAsk, estimate_kv
from stratos.calculators.models.known import find_shape
from stratos.reproduce.load.driving import few_notes, percent_point
from stratos.reproduce.load.local_platform import Platform, running_platform
from stratos.reproduce.record.answer import ClaimAnswer, FigureKind, OwnFigure
from stratos.reproduce.record.claim import between
from stratos.reproduce.record.conditions import RowConditions
from stratos.reproduce.record.result import Cell, ResultTable, RowResult
from stratos.routing.policy.settings import NAMED

JUDGED, PLAIN = "prefix", "round_robin"
WORKERS, FIRST_TOKEN, OWN_TOKENS, TIMEOUT_S = 3, 10, 24, 120.0
KEPT_SHARE = 0.45
"""Documents that the KV of one worker holds, of all."""
COLUMNS = ("policy", "requests_per_s", "against_round_robin", "hit_ratio", "ttft_p50_ms", "ttft_p99_ms")


@dataclass(frozen=True, slots=True)
class DocumentQuestion:
    """A prompt, and the session that all questions about its document have."""

    session: str
    prompt: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRun:
    """All questions under one policy."""

    duration_s: float
    times_s: Sequence[float]
    """Ascending."""
    hit_ratio: float
    """Prompt tokens that were in a cache, of all; the first question about a document never is."""

    @property
    def requests_per_s(self) -> float:
        return len(self.times_s) / self.duration_s

    def row(self, policy: str, plain: PolicyRun) -> tuple[Cell, ...]:
        times_ms = (1e3 * median(self.times_s), 1e3 * percent_point(self.times_s, 99))
        return policy, self.requests_per_s, self.requests_per_s / plain.requests_per_s, self.hit_ratio, *times_ms


def measure(conditions: RowConditions) -> RowResult:
    """One platform after the other."""
    policies, documents, tokens, count, clients = conditions.sized(
        smoke=((JUDGED,), 4, 64, 8, 2),
        short=(tuple(NAMED), 9, 1024, 90, 3),
        full=(tuple(NAMED), 18, 2048, 180, 6),
    )
    questions = _questions(documents, tokens, count, conditions)
    found = {policy: _run(policy, questions, round(KEPT_SHARE * documents), clients, conditions) for policy in policies}
    plain = found.get(PLAIN, found[JUDGED])
    return RowResult(
        answers=[
            ClaimAnswer(
                claim=between("4.15", "a prefix cache saves 50-90 % of prefill", 0.5, 0.9),
                own=OwnFigure(
                    name="hit_ratio", value=found[JUDGED].hit_ratio, kind=FigureKind.MEASURED,
                    how=f"policy {JUDGED}, {WORKERS} workers as processes, the shipped model",
                ),
            )
        ],
        tables=[
            ResultTable(
                title=f"{count} questions about {documents} documents of {tokens} tokens, {clients} clients, {WORKERS} "
                "decode workers as processes",
                kind=FigureKind.MEASURED, columns=COLUMNS, rows=[one.row(name, plain) for name, one in found.items()],
            )
        ],
        notes=[f"A worker's KV holds {round(KEPT_SHARE * documents)} of {documents} documents.", *few_notes(count)],
    )  # fmt: skip


def _questions(documents: int, tokens: int, count: int, conditions: RowConditions) -> list[DocumentQuestion]:
    """In random order, all documents equally often."""
    rng = Random(conditions.seed)
    config = json.loads((conditions.model / "config.json").read_text(encoding="utf-8"))
    texts = [_tokens(rng, tokens, config["vocab_size"]) for _ in range(documents)]
    order = [number % documents for number in range(count)]
    rng.shuffle(order)
    return [
        DocumentQuestion(f"document-{document}", texts[document] + _tokens(rng, OWN_TOKENS, config["vocab_size"]))
        for document in order
    ]


def _tokens(rng: Random, count: int, vocab_size: int) -> tuple[int, ...]:
    return tuple(rng.randrange(FIRST_TOKEN, vocab_size) for _ in range(count))


def _run(
    policy: str, questions: Sequence[DocumentQuestion], kept: int, clients: int, conditions: RowConditions
) -> PolicyRun:
    token_bytes = estimate_kv(find_shape(str(conditions.model)), KvAsk(kv_dtype="float32"))["token_bytes"]
    settings = {
        "STRATOS_ROUTER_POLICIES__DEFAULT": policy,
        "STRATOS_DECODE_WORKER_RUNNER__KV_POOL_BYTES": str(int(kept * len(questions[0].prompt) * token_bytes)),
        "STRATOS_DECODE_WORKER_RUNNER__NUM_THREADS": "1",
    }
    count = str(WORKERS)
    shape = ("--prefill", "0", "--decode", count, "--max-decode", count, "--model", str(conditions.model.resolve()))
    with running_platform(*shape, env=settings) as platform, ThreadPoolExecutor(clients) as pool:
        began_s = time.perf_counter()
        answers = list(pool.map(lambda question: _ask(platform, conditions.model.name, question), questions))
        duration_s = time.perf_counter() - began_s
    num_tokens = sum(len(question.prompt) for question in questions)
    times_s = sorted(seconds for seconds, _ in answers)
    return PolicyRun(duration_s=duration_s, times_s=times_s, hit_ratio=sum(hit for _, hit in answers) / num_tokens)


def _ask(platform: Platform, model: str, question: DocumentQuestion) -> tuple[float, int]:
    """Seconds of an answer of one token, and tokens of its prompt that were cached."""
    body = {"model": model, "prompt": question.prompt, "user": question.session, "max_tokens": 1, "temperature": 0}
    headers = {"Authorization": f"Bearer {platform.key}", "Content-Type": "application/json"}
    address = urlsplit(platform.url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=TIMEOUT_S)
    began_s = time.perf_counter()
    try:
        connection.request("POST", f"{address.path}/completions", json.dumps(body), headers)
        answer = connection.getresponse()
        content = answer.read()
    finally:
        connection.close()
    if answer.status != http.client.OK:
        raise RuntimeError(f"the platform answered {answer.status}: {content.decode(errors='replace')[:300]}")
    usage = json.loads(content)["usage"]
    return time.perf_counter() - began_s, usage["prompt_tokens_details"]["cached_tokens"]
