"""kubectl and helm, and how long to wait for them."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.support.paths import ROOT


class CommandFailed(AssertionError):
    """The command ended with another code than 0; the message has its output."""


def run(command: Sequence[str], *, stdin: str | None = None, timeout_s: float = 120.0) -> str:
    """Output of the command.

    Raises:
        CommandFailed: it ended with another code than 0.
    """
    done = subprocess.run(
        command, cwd=ROOT, input=stdin, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    if done.returncode:
        raise CommandFailed(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


@dataclass(frozen=True, slots=True)
class Kubectl:
    """kubectl in one namespace; empty for what has none."""

    namespace: str = ""

    def __call__(self, *argv: str, stdin: str | None = None, timeout_s: float = 120.0) -> str:
        scope = ["-n", self.namespace] if self.namespace else []
        return run(["kubectl", *scope, *argv], stdin=stdin, timeout_s=timeout_s)

    @property
    def priority_class(self) -> str:
        """Of the tests' own pods in the namespace: no worker takes their room on a full node, and they take none."""
        return f"{self.namespace}-tests"

    def apply(self, *objects: dict[str, Any]) -> None:
        self("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}))

    def items(self, kind: str, selector: str = "") -> list[dict[str, Any]]:
        chosen = ["-l", selector] if selector else []
        return list(json.loads(self("get", kind, *chosen, "-o", "json"))["items"])

    def server_version(self) -> str:
        """ "1.34": major and minor."""
        version = json.loads(self("version", "-o", "json"))["serverVersion"]
        return f"{version['major']}.{version['minor'].rstrip('+')}"


def wait_until(what: str, is_true: Callable[[], bool], timeout_s: float = 120.0, pause_s: float = 0.5) -> float:
    """Asks again and again; returns the seconds it took."""
    start = time.monotonic()
    while not is_true():
        assert time.monotonic() - start < timeout_s, f"{what}: not within {timeout_s:.0f} s"
        time.sleep(pause_s)
    return time.monotonic() - start
