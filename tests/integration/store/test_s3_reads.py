"""Parts of objects from servers that are not as they should be: a connection that ends in the middle, no ranges."""

from __future__ import annotations

import asyncio
import re
import socketserver
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler

import pytest

from stratos.common.errors import DependencyDown, NotFound
from stratos.store.s3_store import S3Store
from stratos.store.settings import ObjectStoreConfig
from tests.support.waiting import eventually

CONTENT = bytes(range(251)) * 4000


class PlainS3(BaseHTTPRequestHandler):
    """One object for every key."""

    protocol_version = "HTTP/1.1"
    knows_ranges = True
    num_sent = len(CONTENT)
    """Bytes after which the connection ends."""
    answers_once = False
    """The connection is kept, and ends at the next request without an answer."""
    has_answered = False

    def do_GET(self) -> None:
        if self.has_answered:
            self.close_connection = True
            return
        asked = re.match(r"bytes=(\d+)-(\d+)", self.headers["Range"])
        assert asked is not None
        body = CONTENT
        if self.knows_ranges:
            body = CONTENT[int(asked[1]) : int(asked[2]) + 1]
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {asked[1]}-{int(asked[1]) + len(body) - 1}/{len(CONTENT)}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.has_answered = self.answers_once
        self.close_connection = not self.answers_once
        try:
            self.wfile.write(body[: self.num_sent])
        except OSError:  # the client has read what it wanted
            return

    def log_message(self, *args: object) -> None:
        """Say nothing."""


class PlainServer(socketserver.ThreadingTCPServer):
    """A server whose end waits for no connection that a client keeps."""

    daemon_threads = True


@contextmanager
def served(region: str = "", timeout_s: float = 2.0, **traits: object) -> Iterator[S3Store]:
    """A store on a server with such traits."""
    handler = type("Handler", (PlainS3,), traits)
    with pytest.MonkeyPatch.context() as patch, PlainServer(("127.0.0.1", 0), handler) as server:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "testing")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        config = ObjectStoreConfig(url="s3://bucket", s3_endpoint_url=url, s3_region=region, timeout_s=timeout_s)
        yield S3Store("bucket", "", config, 1)
        server.shutdown()


async def test_a_connection_that_ends_in_the_middle_is_an_error_and_no_shorter_object() -> None:
    with served(num_sent=1000) as store:
        with pytest.raises(DependencyDown, match="1000 read, but total bytes expected is 100000"):
            await store.read("key", 0, 100_000)
        assert await store.read("key", 7, 1000) == CONTENT[7:1007]


async def test_a_server_without_ranges_gives_the_right_part() -> None:
    with served(knows_ranges=False) as store:
        assert await store.read("key", 1001, 100) == CONTENT[1001:1101]
        assert await store.read("key", len(CONTENT) - 1, 2) == CONTENT[-1:]
        assert await store.read("key", len(CONTENT) + 9, 2) == b""


async def test_a_kept_connection_that_ends_when_it_is_used_again_is_no_lost_store() -> None:
    """One attempt, as for the registry: its only connection may have ended while nothing was asked."""
    with served(answers_once=True) as store:
        for offset in (0, 1001, 2002):
            assert await store.read("key", offset, 100) == CONTENT[offset : offset + 100]


async def test_a_server_that_never_answers_is_asked_twice_and_no_more() -> None:
    asked: list[str] = []

    def hang_up(handler: PlainS3) -> None:
        asked.append(handler.path)
        handler.close_connection = True

    with served(do_GET=hang_up) as store, pytest.raises(DependencyDown, match="Connection was closed"):
        await store.read("key", 0, 100)
    assert asked == ["/bucket/key"] * 2


@pytest.mark.parametrize(
    ("setting", "variable", "expected"),
    [("", None, "us-east-1"), ("", "fr-par", "fr-par"), ("eu-central-1", "fr-par", "eu-central-1")],
)
async def test_requests_are_signed_for_the_region_that_settings_or_else_the_environment_name(
    setting: str, variable: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The defect: commands, which have no such setting, signed for us-east-1 whatever the environment said."""
    signed: list[str] = []

    def note(handler: PlainS3) -> None:
        signed.append(handler.headers["Authorization"])
        PlainS3.do_GET(handler)

    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    if variable is not None:
        monkeypatch.setenv("AWS_DEFAULT_REGION", variable)
    with served(setting, do_GET=note) as store:
        assert await store.read("key", 0, 10) == CONTENT[:10]
    (authorization,) = signed
    assert f"/{expected}/s3/aws4_request" in authorization


def refuse(handler: PlainS3) -> None:
    """Answer that there is no such object."""
    body = b"<Error><Code>NoSuchKey</Code></Error>"
    handler.send_response(404)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


async def test_a_server_that_is_silent_takes_no_threads_of_the_event_loop() -> None:
    """They encode prompts and resolve names, so requests that need nothing of the store would wait for it."""
    asked, is_over = list[str](), threading.Event()

    def say_nothing(handler: PlainS3) -> None:
        asked.append(handler.path)
        is_over.wait(3)
        refuse(handler)

    with served(timeout_s=60, do_GET=say_nothing) as store, ThreadPoolExecutor(2) as threads:
        asyncio.get_running_loop().set_default_executor(threads)
        reads = [asyncio.create_task(store.read("key", 0, 1)) for _ in range(8)]
        await eventually(lambda: len(asked) >= 2)
        other = asyncio.create_task(asyncio.to_thread(len, asked))
        done, _ = await asyncio.wait([other, *reads], return_when=asyncio.FIRST_COMPLETED)
        is_over.set()
        assert done == {other}
        assert {type(error) for error in await asyncio.gather(*reads, return_exceptions=True)} == {NotFound}


async def test_deleting_what_is_not_there_is_no_error_at_a_server_that_says_so() -> None:
    with served(do_DELETE=refuse) as store:
        await store.delete("key")
