"""Engines in processes of this machine; one that ends is replaced."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from stratos.common.error_codes import error_from_code
from stratos.common.errors import DependencyDown
from stratos_offline.blocks import BlockReport, BlockTask
from stratos_offline.options import EngineAsk

_MAX_FALSE_STARTS = 3
"""Processes of one place that end before they are ready, one after another."""


class LocalPool:
    """One pool for one run.

    Args:
        ask: what each engine is.
        endpoint: of all lines.
        num_engines: processes.
    """

    def __init__(self, ask: EngineAsk, endpoint: str, num_engines: int) -> None:
        self._ask = ask
        self._endpoint = endpoint
        self._num_engines = num_engines
        self._tasks: deque[BlockTask] = deque()
        self._found: queue.Queue[BlockReport | BaseException] = queue.Queue()
        self._is_over = threading.Event()
        self.processes: dict[int, subprocess.Popen[str]] = {}
        """Those that run, by their place."""

    def run(self, tasks: Sequence[BlockTask]) -> Iterator[BlockReport]:
        """Compute blocks by processes, each of which takes the next one when it has none."""
        self._tasks.extend(tasks)
        threads = [
            threading.Thread(target=self._serve, args=(place,), name=f"engine {place}", daemon=True)
            for place in range(min(self._num_engines, len(tasks)))
        ]
        for thread in threads:
            thread.start()
        try:
            for _ in tasks:
                found = self._found.get()
                if isinstance(found, BaseException):
                    raise found
                yield found
        finally:
            self._is_over.set()
            for process in list(self.processes.values()):
                process.kill()  # their blocks are kept, and nothing else is theirs
            for thread in threads:
                thread.join()

    def _serve(self, place: int) -> None:
        """One place: a process after another, until there is no block left.

        The thread lives as long as its processes, which the kernel ends with the thread that began them.
        """
        try:
            num_false = 0
            while not self._is_over.is_set() and self._tasks:
                num_false = 0 if self._has_worked(place) else num_false + 1
                if num_false == _MAX_FALSE_STARTS:
                    raise DependencyDown("engines end before they are ready; their messages are above")
        except Exception as error:  # the edge of the thread: the caller of run gets it
            self._found.put(error)

    def _has_worked(self, place: int) -> bool:
        """Compute blocks by one process until it ends; false where it was never ready."""
        env = {**os.environ, "OMP_NUM_THREADS": str(self._ask.engine.threads)}
        command = [sys.executable, "-m", "stratos_offline.pools.engine_process"]
        pipe = subprocess.PIPE
        # A group of its own: Ctrl-C is for the driver, which ends its engines.
        process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, text=True, encoding="utf-8", env=env, process_group=0
        )
        self.processes[place] = process
        try:
            if self._is_over.is_set():  # ``run`` ended before it could see this process
                return True
            first = {"ask": json.loads(self._ask.to_json()), "endpoint": self._endpoint, "parent": os.getpid()}
            is_ready = _exchange(process, first) is not None
            while is_ready and not self._is_over.is_set() and self._compute_next(process):
                pass
            return is_ready
        finally:
            del self.processes[place]
            _end(process)

    def _compute_next(self, process: subprocess.Popen[str]) -> bool:
        """False where there is no block left, or the process has ended; the block it had is begun again."""
        try:
            task = self._tasks.popleft()
        except IndexError:
            return False
        answer = _exchange(process, task.to_dict())
        if answer is None:
            self._tasks.appendleft(task)
            return False
        self._found.put(BlockReport(**answer))
        return True


def _end(process: subprocess.Popen[str]) -> None:
    """Kill a process, and forget what was written to it and not read."""
    process.kill()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with suppress(OSError):  # closing writes what is left, to a pipe without a reader
                stream.close()
    process.wait()


def _exchange(process: subprocess.Popen[str], message: dict[str, Any]) -> dict[str, Any] | None:
    """Answer of a process, ``None`` where it has ended; raises what it answers."""
    assert process.stdin is not None, "it is a pipe"
    assert process.stdout is not None, "it is a pipe"
    try:
        process.stdin.write(json.dumps(message) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
    except OSError:
        return None
    if not line.endswith("\n"):
        return None
    answer: dict[str, Any] = json.loads(line)
    if "error" in answer:
        raise error_from_code(answer["error"], answer["message"], http_status=answer["status"])
    return answer
