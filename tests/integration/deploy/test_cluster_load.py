"""The load of the end-to-end tests tells failed, different and drained streams from undisturbed ones."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.support.kube.cluster.load import PROGRAM, bodies

DONE = "data: [DONE]\n\n"


def event(*tokens: int, reason: str | None = None) -> str:
    choice = {"token_ids": list(tokens), "text": " ".join(map(str, tokens)), "finish_reason": reason}
    return f"data: {json.dumps({'choices': [choice]})}\n\n"


WHOLE = event(1, 2) + event(3, reason="length") + DONE
OTHER = event(1, 2) + event(4, reason="length") + DONE
DRAINED = event(1) + f"data: {json.dumps({'error': {'code': 'draining', 'message': 'leaves'}})}\n\n"
BROKEN = event(1) + f"data: {json.dumps({'error': {'code': 'internal_error', 'message': 'bug'}})}\n\n"


@asynccontextmanager
async def gateway(answers: list[tuple[int, str]], heads: list[str] | None = None) -> AsyncIterator[str]:
    """Answers with these one by one, and then with whole streams; ``heads`` gets those of the requests."""
    left = list(answers)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        if heads is not None:
            heads.append(head)
        await reader.readexactly(int(head.partition("content-length: ")[2].split("\r\n")[0]))
        status, body = left.pop(0) if left else (200, WHOLE)
        writer.write(f"HTTP/1.1 {status} X\r\nconnection: close\r\n\r\n{body}".encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()
        yield f"http://{host}:{port}"


def hurried(**times_s: float) -> str:
    """The program, as it is but for its pauses and other times."""
    text = PROGRAM.read_text()
    for name, seconds in {"PROGRESS_S": 0.05, "PAUSE_S": 0.05, **times_s}.items():
        text, num_found = re.subn(rf"(?m)^{name} = [\d.]+$", f"{name} = {seconds}", text)
        assert num_found == 1, name
    return text


async def run_load(url: str, num_streams: int, *, comes_back: bool = False, **times_s: float) -> dict[str, Any]:
    """Last report of the program, after so many streams under load."""
    task = {"url": url, "key": "sk", "bodies": [{"prompt": "a"}], "concurrency": 1, "comes_back": comes_back}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-u", "-c", hurried(**times_s), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{json.dumps(task)}\n".encode())
    last: dict[str, Any] = {}
    while line := await process.stdout.readline():
        last = json.loads(line)
        ended = last["num_done"] + last["num_ended_by_drain"] + len(last["failed"]) + len(last["different"])
        if ended >= num_streams and not process.stdin.is_closing():
            process.stdin.close()
    await process.wait()
    return last


async def test_streams_are_told_apart() -> None:
    disturbed = [(200, OTHER), (200, DRAINED), (200, BROKEN), (503, "{}"), (200, event(1, 2))]
    async with gateway([(200, WHOLE), *disturbed]) as url:
        found = await run_load(url, len(disturbed) + 1)
    assert found["event"] == "end"
    assert [row["tokens"] for row in found["different"]] == [[1, 2, 4]]
    assert found["num_ended_by_drain"] == 1
    assert [(row["status"], row["code"]) for row in found["failed"]] == [(200, "internal_error"), (503, ""), (200, "")]
    assert "without a reason" in found["failed"][-1]["error"]
    assert found["num_done"] >= 1


async def test_a_client_that_comes_back_has_each_token_once() -> None:
    first, rest = f"id: e.1\n{event(1, 2)}", f"id: e.2\n{event(3, reason='length')}"
    moved = first + f"data: {json.dumps({'error': {'code': 'stream_moved', 'message': 'another has it'}})}\n\n"
    heads: list[str] = []
    async with gateway([(200, first + rest + DONE), (200, moved), (503, "{}"), (200, rest + DONE)], heads) as url:
        found = await run_load(url, 1, comes_back=True)
    assert (found["num_failed"], found["num_different"], found["num_came_back"]) == (0, 0, 2)
    assert found["num_resumed"] == 2
    assert found["num_unrecorded"] >= 1, "the answers after these have no ids"
    assert "last-event-id" not in heads[1]
    assert all("last-event-id: e.1\r\n" in head for head in heads[2:4])
    keys = [head.partition("idempotency-key: ")[2].split("\r\n")[0] for head in heads[:4]]
    assert keys[0] != keys[1] == keys[2] == keys[3]


async def test_a_client_that_came_back_in_vain_has_a_failed_stream() -> None:
    async with gateway([(200, WHOLE), (200, DRAINED)]) as url:
        found = await run_load(url, 1, comes_back=True, TIMEOUT_S=0.0)
    assert ([row["code"] for row in found["failed"]], found["num_ended_by_drain"]) == (["draining"], 0)


async def test_without_an_undisturbed_answer_there_is_no_load() -> None:
    async with gateway([(503, "{}")]) as url:
        assert await run_load(url, 1) == {}


def test_prompts_are_all_different() -> None:
    prompts = [body["prompt"] for body in bodies()]
    assert len(set(prompts)) == len(prompts)


@pytest.mark.parametrize("index", [0, 1])
def test_streams_are_greedy_or_seeded(index: int) -> None:
    body = bodies()[index]
    assert body["temperature"] == 0 or "seed" in body
