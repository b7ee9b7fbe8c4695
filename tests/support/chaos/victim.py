"""A process to aim faults at, that does what it is told; and strikes under way."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stratos.cli.chaos.faults.fault import Fault
from tests.support.chaos.places import OneProcess

VICTIM = """
import fcntl, hashlib, mmap, os, socket, sys, threading, time

def serve():
    import http.server, threading
    class Quiet(http.server.ThreadingHTTPServer):
        daemon_threads = True
        def handle_error(self, *_):
            pass
    server = Quiet(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_port

def spin():
    while True:
        hashlib.sha256(bytes(1 << 20))

server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
connection, _ = server.accept()
received, sent = (os.open(path, os.O_RDWR) for path in sys.argv[2:])
fcntl.flock(received, fcntl.LOCK_EX)
tier = os.memfd_create("stratos-kv-host")
os.ftruncate(tier, 1 << 18)
for place in range(0, 3 << 16, 1 << 16):
    os.pwrite(tier, bytes(4096), place)
print("accepted", flush=True)
kept = []
for line in sys.stdin:
    word = line.strip()
    try:
        if word == "echo":
            connection.sendall(connection.recv(100))
        elif word.startswith("call "):
            kept.append(connection)
            connection = socket.create_connection(("127.0.0.1", int(word.split()[1])))
        elif word == "write":
            with open(sys.argv[1], "a") as file:
                file.write("text")
        elif word == "allocate":
            kept.append(mmap.mmap(-1, 1 << 26))
        elif word == "start":
            print(os.posix_spawnp("sleep", ["sleep", "600"], os.environ), flush=True)
            continue
        elif word == "serve":
            print(serve(), flush=True)
            continue
        elif word == "clock":
            print(time.time(), flush=True)
            continue
        elif word == "spin":
            threading.Thread(target=spin, daemon=True).start()
        elif word == "fork":
            asked, ask = os.pipe()
            if not os.fork():
                os.close(ask)
                while os.read(asked, 1):
                    print(time.time(), flush=True)
                os._exit(0)
        elif word == "clock of the fork":
            os.write(ask, b"?")
            continue
        print("done", flush=True)
    except OSError as error:
        print(type(error).__name__, error.errno, flush=True)
"""


class Victim:
    """The process, and a connection to it."""

    def __init__(self, process: subprocess.Popen[str], connection: socket.socket, folder: Path) -> None:
        self.process, self.connection, self.folder = process, connection, folder
        self._asking = asyncio.Lock()

    def tell(self, word: str) -> None:
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()

    async def ask(self, word: str) -> str:
        """Its answer to a word, where a strike may ask it, too."""
        async with self._asking:
            self.tell(word)
            return await self.answer()

    def tier(self) -> bytes:
        """Its host tier, of which the last quarter was never written."""
        return self._tier.read_bytes()

    def write_tier(self, place: int, content: bytes) -> None:
        with self._tier.open("r+b") as file:
            file.seek(place)
            file.write(content)

    @property
    def _tier(self) -> Path:
        links = Path(f"/proc/{self.process.pid}/fd").iterdir()
        return next(link for link in links if "stratos-kv-host" in str(link.readlink()))

    async def answer(self) -> str:
        return (await asyncio.to_thread(self.process.stdout.readline)).strip()


@contextmanager
def running_victim(tmp_path: Path) -> Iterator[Victim]:
    """One whose files lie in the folder."""
    rings = [tmp_path / f"kv-{digit * 32}.ring" for digit in "01"]
    for ring in rings:
        ring.write_bytes(bytes(65536))
    argv = [sys.executable, "-I", "-S", "-c", VICTIM, str(tmp_path / "file"), *map(str, rings)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            port = int(process.stdout.readline())
            with socket.create_connection(("127.0.0.1", port)) as connection:
                assert process.stdout.readline() == "accepted\n"
                yield Victim(process, connection, tmp_path)
        finally:
            process.kill()


@contextmanager
def running_sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process with nothing to disturb."""
    with subprocess.Popen(["sleep", "600"]) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def begun(fault: Fault, place: OneProcess) -> Iterator[tuple[asyncio.Task[dict[str, object]], asyncio.Event]]:
    """A strike under way, and the event of its effect."""
    in_effect = asyncio.Event()
    strike = asyncio.ensure_future(fault.strike(place, in_effect))
    try:
        yield strike, in_effect
    finally:
        strike.cancel()


async def effect_of(strike: asyncio.Task[dict[str, object]], in_effect: asyncio.Event) -> None:
    """Wait for it; raises what the strike raises."""
    seen = asyncio.ensure_future(in_effect.wait())
    await asyncio.wait({strike, seen}, timeout=60, return_when=asyncio.FIRST_COMPLETED)
    seen.cancel()
    assert in_effect.is_set(), strike


async def cancelled(strike: asyncio.Task[dict[str, object]]) -> asyncio.CancelledError:
    """End it early."""
    strike.cancel()
    with pytest.raises(asyncio.CancelledError) as raised:
        await strike
    return raised.value
