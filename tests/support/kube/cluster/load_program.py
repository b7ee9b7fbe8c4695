"""Constant streaming load, as a program of a pod; ``load.py`` talks with it. Needs httpx alone.

It reads its task as one line of JSON, asks for every body once and keeps the answers, then streams them again and again
until its input says so or ends, and compares each answer with the kept one. Every line that it prints is JSON.

With "comes_back" each stream has a record (an Idempotency-Key), and its client comes back behind the last event that it
has seen: after a lost connection, a silence, an error that says so, or a 503.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import time
import uuid
from typing import Any

import httpx

TIMEOUT_S = 120.0
PROGRESS_S = 1.0
LEARN_AT_ONCE = 3
"""What waits for an undisturbed answer must not fill the queue that is to be seen later."""
MAX_SHOWN = 12
"""Failed or different streams that are told in full; all are counted."""
PAUSE_S = 0.5
"""After one that failed, so that an outage is no storm."""
SILENCE_S, CONNECT_S = 20.0, 3.0
"""After so long without a byte, or a connection, a client that comes back does."""
COMES_BACK = ("draining", "stream_moved", "overloaded", "dependency_unavailable", "worker_lost")


class Load:
    """Streams, and what became of them."""

    def __init__(self, task: dict[str, Any]) -> None:
        self._url, self._key = task["url"], task["key"]
        self._bodies: list[dict[str, Any]] = task["bodies"]
        self._num_at_once: int = task["concurrency"]
        self._comes_back: bool = task.get("comes_back", False)
        self._expected: list[dict[str, Any]] = []
        self._numbers = itertools.count()
        self._is_stopping = False
        self._start = time.monotonic()
        self.num_done = self.num_tokens = self.num_failed = self.num_different = 0
        self.failed: list[dict[str, Any]] = []
        self.different: list[dict[str, Any]] = []
        self.num_ended_by_drain = self.num_came_back = self.num_resumed = self.num_unrecorded = 0
        self.longest_gap_s = 0.0

    async def learn(self) -> None:
        """The undisturbed answers. Raises ``RuntimeError`` when there is none."""
        limit = asyncio.Semaphore(min(self._num_at_once, LEARN_AT_ONCE))

        async def ask(body: dict[str, Any]) -> dict[str, Any]:
            async with limit:
                answer = await self._stream(body)
            if answer["error"]:
                raise RuntimeError(json.dumps(answer))
            return answer

        self._expected = list(await asyncio.gather(*map(ask, self._bodies)))

    async def run(self) -> None:
        """Until it is told to stop, and then to the end of what is open."""
        streams = [asyncio.create_task(self._stream_on()) for _ in range(self._num_at_once)]
        telling = asyncio.create_task(self._tell())
        await asyncio.to_thread(sys.stdin.readline)
        self._is_stopping = True
        await asyncio.gather(*streams)
        telling.cancel()

    def result(self) -> dict[str, Any]:
        """All that counts."""
        return {
            "num_done": self.num_done, "num_tokens": self.num_tokens, "num_failed": self.num_failed,
            "failed": self.failed[:MAX_SHOWN], "num_different": self.num_different,
            "different": self.different[:MAX_SHOWN], "num_ended_by_drain": self.num_ended_by_drain,
            "num_came_back": self.num_came_back, "num_resumed": self.num_resumed,
            "num_unrecorded": self.num_unrecorded, "longest_gap_s": self.longest_gap_s,
            "seconds": time.monotonic() - self._start,
        }  # fmt: skip

    async def _tell(self) -> None:
        while True:
            say("progress", self.result())
            await asyncio.sleep(PROGRESS_S)

    async def _stream_on(self) -> None:
        while not self._is_stopping:
            number = next(self._numbers) % len(self._bodies)
            begun_s = time.monotonic() - self._start
            answer = await self._stream(self._bodies[number])
            self._judge(answer, self._expected[number], {"number": number, "begun_s": round(begun_s, 1)})
            if answer["error"]:
                await asyncio.sleep(PAUSE_S)

    def _judge(self, answer: dict[str, Any], expected: dict[str, Any], about: dict[str, Any]) -> None:
        self.longest_gap_s = max(self.longest_gap_s, answer["longest_gap_s"])
        self.num_tokens += len(answer["tokens"])
        self.num_unrecorded += self._comes_back and not answer["cursor"]
        if answer["code"] == "draining" and answer["status"] == httpx.codes.OK and not self._comes_back:
            self.num_ended_by_drain += 1  # it was open when the time of its gateway was over
        elif answer["error"]:
            self.num_failed += 1
            self.failed.append(about | {name: answer[name] for name in ("status", "error", "code")})
        elif answer["tokens"] != expected["tokens"] or answer["text"] != expected["text"]:
            self.num_different += 1
            self.different.append(about | {"tokens": answer["tokens"], "expected": expected["tokens"]})
        else:
            self.num_done += 1

    async def _stream(self, body: dict[str, Any]) -> dict[str, Any]:
        """On a connection of its own, as a new client has it; one that comes back takes more, until it has its end."""
        found: dict[str, Any] = {
            "status": 0, "tokens": [], "text": "", "error": "", "code": "", "longest_gap_s": 0.0, "reason": None,
            "cursor": "", "last": None,
        }  # fmt: skip
        headers = {"authorization": f"Bearer {self._key}"}
        if self._comes_back:
            headers["idempotency-key"] = f"load-{uuid.uuid4()}"
        begun = time.monotonic()
        await self._connect(body, headers, found)
        while self._may_come_back(found) and time.monotonic() - begun < TIMEOUT_S:
            self.num_came_back += 1
            self.num_resumed += bool(found["cursor"])
            await asyncio.sleep(PAUSE_S)
            found |= {"error": "", "code": ""}
            if not found["cursor"]:  # no event had an id: there is no record, and the answer begins again
                found |= {"tokens": [], "text": "", "reason": None}
            await self._connect(body, headers | ({"last-event-id": found["cursor"]} if found["cursor"] else {}), found)
        return found

    def _may_come_back(self, found: dict[str, Any]) -> bool:
        is_cut = found["status"] in (0, httpx.codes.OK) and (not found["code"] or found["code"] in COMES_BACK)
        return self._comes_back and bool(found["error"]) and (is_cut or found["status"] >= 500)

    async def _connect(self, body: dict[str, Any], headers: dict[str, str], found: dict[str, Any]) -> None:
        timeout = httpx.Timeout(SILENCE_S, connect=CONNECT_S) if self._comes_back else httpx.Timeout(TIMEOUT_S)
        found["status"] = 0
        try:
            async with (
                httpx.AsyncClient(timeout=timeout, verify=False, trust_env=False) as client,
                client.stream("POST", self._url, json=body | {"stream": True}, headers=headers) as answer,
            ):
                found["status"] = answer.status_code
                if answer.status_code != httpx.codes.OK:
                    found["error"] = (await answer.aread()).decode()[:500] or f"status {answer.status_code}"
                    return
                await self._read(answer, found)
        except httpx.HTTPError as error:
            found["error"] = f"{type(error).__name__}: {error}"
        if not found["error"] and not found["reason"]:
            found["error"] = "the stream ended without a reason"

    async def _read(self, answer: httpx.Response, found: dict[str, Any]) -> None:
        name = found["cursor"]
        async for line in answer.aiter_lines():
            if line.startswith("id: "):
                name = line[4:]
            if not line.startswith("data: {"):
                continue
            now = time.monotonic()
            found["longest_gap_s"] = max(found["longest_gap_s"], now - (found["last"] or now))
            found["last"], found["cursor"], event = now, name, json.loads(line[6:])
            if "error" in event:
                found["error"], found["code"] = json.dumps(event["error"])[:500], event["error"].get("code") or ""
            for choice in event.get("choices", ()):
                found["tokens"] += choice.get("token_ids") or []
                found["text"] += choice["text"]
                found["reason"] = choice.get("finish_reason") or found["reason"]


def say(event: str, content: dict[str, Any]) -> None:
    """One line."""
    print(json.dumps({"event": event, **content}), flush=True)


async def main() -> None:
    """Learn, load, and the result as the last line."""
    load = Load(json.loads(sys.stdin.readline()))
    await load.learn()
    say("learnt", load.result())
    await load.run()
    say("end", load.result())


if __name__ == "__main__":
    asyncio.run(main())
