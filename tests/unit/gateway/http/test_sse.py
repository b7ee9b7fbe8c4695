"""Comments of a silent stream, beside a client that does not read."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stratos_gateway.http.sse import DONE, KEEP_ALIVE, EventStream, SlowClient, patient_send
from tests.support.virtual_loop import run_virtual


class Client:
    """ASGI as uvicorn has it: nothing is written while the client's buffers are full, nor after the answer's end."""

    def __init__(self) -> None:
        self.reads = asyncio.Event()
        self.got: list[bytes] = []
        self.is_complete = False

    async def send(self, message: Any) -> None:
        if not self.reads.is_set():
            await self.reads.wait()
        if self.is_complete:
            raise RuntimeError("after the end")
        self.got.append(message.get("body", b""))
        self.is_complete = message.get("more_body") is False


@pytest.mark.parametrize("reads_before_s", [0.5, 2.5])
def test_a_client_that_reads_again_at_the_end_gets_no_comment_behind_it(
    reads_before_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    async def answer() -> list[bytes]:
        client = Client()
        stream = EventStream(patient_send(client.send, 30.0), {})
        async with stream.kept_alive(1.0):
            asyncio.get_running_loop().call_later(reads_before_s, client.reads.set)
            await stream.write(b"data: 1\n\n")
            await stream.write(DONE)
            await stream.end(b"")
        return client.got

    assert run_virtual(answer()) == [b"", b"data: 1\n\n", DONE, b""]
    assert not caplog.records


def test_a_silent_stream_gets_comments() -> None:
    async def answer() -> list[bytes]:
        client = Client()
        client.reads.set()
        stream = EventStream(patient_send(client.send, 30.0), {})
        async with stream.kept_alive(1.0):
            await asyncio.sleep(2.5)
            await stream.write(DONE)
            await stream.end(b"")
        return client.got

    assert run_virtual(answer()) == [b"", KEEP_ALIVE, KEEP_ALIVE, DONE, b""]


def test_a_client_that_took_nothing_of_the_answer_before_is_given_up_at_the_first_byte() -> None:
    """On a connection that is used again its buffers may be full before the stream has begun."""

    async def answer() -> float:
        client = Client()
        with pytest.raises(SlowClient):
            await EventStream(patient_send(client.send, 30.0), {}).write(DONE)
        return asyncio.get_running_loop().time()

    assert run_virtual(answer()) == 1030.0


def test_a_write_that_waits_is_cancelled_with_its_task_and_raises_what_the_transport_raises() -> None:
    async def answer() -> tuple[list[str], list[bytes]]:
        client, ends, found = Client(), list[str](), list[str]()

        async def send(message: Any) -> None:
            try:
                await client.send(message)
            except asyncio.CancelledError:
                ends.append("cancelled")
                raise

        stream = EventStream(patient_send(send, 30.0), {})
        write = asyncio.create_task(stream.write(DONE))
        await asyncio.sleep(1.0)
        write.cancel()
        found += [type(end).__name__ for end in await asyncio.gather(write, return_exceptions=True)]
        client.is_complete = True
        asyncio.get_running_loop().call_later(1.0, client.reads.set)
        with pytest.raises(RuntimeError, match="after the end"):
            await stream.write(DONE)
        return found + ends, client.got

    assert run_virtual(answer()) == (["CancelledError", "cancelled"], [])


def test_a_stream_that_has_nothing_for_its_client_is_no_stream() -> None:
    """An event source asks again after an empty one, for ever."""

    async def answer() -> list[Any]:
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        await EventStream(send, {}).end(b"")
        return sent

    head, body = run_virtual(answer())
    assert (head["status"], head["headers"], body["body"], body["more_body"]) == (204, [], b"", False)
