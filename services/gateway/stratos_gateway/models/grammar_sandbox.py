"""The process beside the gateway in which grammars are tried (``stratos.text.grammar_probe``).

Started with the first grammar, and again after a grammar has killed it.  It is given no environment, so it knows no
secret, and a session of its own, so that a Ctrl-C does not reach it; it ends when its stdin does.
"""

from __future__ import annotations

import contextlib
import json
import select
import signal
import subprocess
import sys
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stratos.common.errors import Overloaded
from stratos.core.requests.grammar import TOO_COMPLEX, GrammarSpec

START_TIMEOUT_S = 60.0
TIMEOUT_S = 20.0
"""Wall time of one grammar; a machine that cannot give it its share of CPU time is to blame, not the grammar."""
_CALLED_OFF = (signal.SIGTERM, signal.SIGKILL, signal.SIGINT, signal.SIGHUP)
"""Ends that others wish for; what a grammar does is SIGSEGV, SIGABRT or SIGXCPU."""


class GrammarSandbox:
    """Blocks; for one thread at a time.

    Args:
        model_path: folder with ``tokenizer.json``.
        vocab_size: of the model.
        eos_token_ids: of the model.
    """

    def __init__(self, model_path: Path, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        arguments = [str(model_path.resolve()), str(vocab_size), *map(str, eos_token_ids)]
        self._command = [sys.executable, "-m", "stratos.text.grammar_probe", *arguments]
        self._process: subprocess.Popen[bytes] | None = None
        self._ends: weakref.finalize[[subprocess.Popen[bytes]], GrammarSandbox] | None = None

    @property
    def pid(self) -> int | None:
        """Id of the process, while there is one."""
        return None if self._process is None else self._process.pid

    def problem_of(self, spec: GrammarSpec) -> str:
        """Problem of a grammar; empty when there is none.

        Raises:
            Overloaded: the machine has no time for it, or the process cannot run.
        """
        process = self._process or self._start()
        line = json.dumps({"kind": spec.kind, "text": spec.text}).encode() + b"\n"
        with contextlib.suppress(BrokenPipeError):
            assert process.stdin is not None
            process.stdin.write(line)
        answer = _read(process, TIMEOUT_S)
        if answer is not None:
            return str(answer["problem"])
        code = self._stop()
        if -code in _CALLED_OFF:
            raise Overloaded("the grammar could not be checked; try again")
        return TOO_COMPLEX

    def close(self) -> None:
        """End the process."""
        self._stop()

    def _start(self) -> subprocess.Popen[bytes]:
        environment = {"PYTHONPATH": ":".join(filter(None, sys.path))}
        process = subprocess.Popen(
            self._command,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # panics quote the grammar, which is the client's
            env=environment,
            start_new_session=True,
        )
        self._process, self._ends = process, weakref.finalize(self, _end, process)
        if _read(process, START_TIMEOUT_S) is None:
            self._stop()
            raise Overloaded("grammars cannot be checked now; try again")
        return process

    def _stop(self) -> int:
        """Forget the process; returns its exit code, that of SIGKILL if it did not end by itself."""
        process, ends = self._process, self._ends
        self._process = self._ends = None
        if process is None or ends is None:
            return 0
        ends.detach()
        return _end(process)


def _read(process: subprocess.Popen[bytes], timeout_s: float) -> dict[str, Any] | None:
    """The next line; ``None`` when the process ends or takes too long."""
    assert process.stdout is not None
    data = b""
    while not data.endswith(b"\n"):
        part = process.stdout.read(1 << 16) if _has_news(process, timeout_s) else b""
        if not part:
            return None
        data += part
    return dict(json.loads(data))


def _has_news(process: subprocess.Popen[bytes], timeout_s: float) -> bool:
    """There is something to read, or the end of it."""
    poll = select.poll()  # select() takes no descriptors above 1023
    poll.register(process.stdout, select.POLLIN)  # type: ignore[arg-type]
    return bool(poll.poll(timeout_s * 1000))


def _end(process: subprocess.Popen[bytes]) -> int:
    assert process.stdin is not None
    assert process.stdout is not None
    if _has_news(process, 0.0):  # it is ending by itself: what of?
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5.0)
    process.kill()
    code = process.wait()
    process.stdin.close()
    process.stdout.close()
    return code
