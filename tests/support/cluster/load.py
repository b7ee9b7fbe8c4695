"""Constant streaming load from a pod, while something happens to the cluster."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from tests.support.cluster.client import ClientPod
from tests.support.cluster.commands import CommandFailed, wait_until
from tests.support.cluster.release import Release

PROGRAM = Path(__file__).with_name("load_program.py")
NUM_AT_ONCE = 3
NUM_TOKENS = 64
STREAMS_TIMEOUT_S = 240.0
PROMPT = "def read_lines(path):\n    with open(path, encoding='utf-8') as file:\n        return list(file)\n\n\n"


def bodies(num: int = 24) -> list[dict[str, Any]]:
    """Greedy and seeded streams; every prompt is another one, and long enough to be computed at a prefill worker."""
    sampling: tuple[dict[str, Any], ...] = ({"temperature": 0}, {"temperature": 0.8, "top_p": 0.95, "seed": 7})
    common = {"model": "base", "max_tokens": NUM_TOKENS, "ignore_eos": True, "return_token_ids": True}
    return [
        {**common, **sampling[index % 2], "prompt": f"# {index}\n{PROMPT * 2}def number_{index}("}
        for index in range(num)
    ]


@dataclass(slots=True)
class StreamingLoad:
    """What runs, as far as it has told."""

    process: subprocess.Popen[str]
    _last: dict[str, Any] = field(default_factory=dict)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def num_done(self) -> int:
        """Streams that ended as the undisturbed ones did."""
        return int(self._said().get("num_done", 0))

    def wait_streams(self, num: int = 2 * NUM_AT_ONCE) -> None:
        """So many more end well."""
        start = self.num_done()
        try:
            wait_until(f"{num} more streams end", lambda: self.num_done() >= start + num, STREAMS_TIMEOUT_S)
        except AssertionError as error:
            raise CommandFailed(f"{error}; the load said {json.dumps(self._said())[:4000]}") from None

    def figures(self) -> dict[str, Any]:
        """For a report; fails where a stream failed or had other tokens.

        Raises:
            AssertionError: with those streams.
        """
        assert self.process.stdin is not None
        self.process.stdin.close()
        wait_until("the load ends", lambda: self._event() == "end", STREAMS_TIMEOUT_S)
        found = self._said()
        assert not found["num_failed"] + found["num_different"], json.dumps(found)[:4000]
        assert found["num_done"] > 0
        return {
            "streams, all tokens equal": found["num_done"], "streams failed": 0,
            "streams ended by a gateway's drain limit": found["num_ended_by_drain"],
            "longest gap, s": found["longest_gap_s"], "under load, s": found["seconds"],
        }  # fmt: skip

    def read(self, lines: IO[str]) -> None:
        """Follow the program's output, in a thread of its own."""
        for line in lines:
            with self._changed:
                self._last = json.loads(line)

    def wait_learnt(self) -> None:
        """The undisturbed answers are known, and the load has begun."""
        wait_until("the undisturbed answers are known", lambda: bool(self._event()), STREAMS_TIMEOUT_S)

    def _said(self) -> dict[str, Any]:
        with self._changed:
            return dict(self._last)

    def _event(self) -> str:
        said = self._said()
        is_over = self.process.poll() is not None and said.get("event") != "end"
        assert not is_over, f"the load's program ended; it had said {json.dumps(said)[:4000]}"
        return str(said.get("event", ""))


@contextmanager
def streaming_load(pod: ClientPod, release: Release) -> Iterator[StreamingLoad]:
    """Streams through the Service's address, so that a lost name server is no matter of the load."""
    service = json.loads(release.kubectl("get", "service", f"{release.name}-gateway", "-o", "json"))
    url = f"http://{service['spec']['clusterIP']}/v1/completions"
    task = {"url": url, "key": release.api_key(), "bodies": bodies(), "concurrency": NUM_AT_ONCE}
    command = ["kubectl", "-n", pod.kubectl.namespace, "exec", "-i", pod.name, "--", "python", "-u", "-c"]
    process = subprocess.Popen(
        [*command, PROGRAM.read_text()], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    load = StreamingLoad(process)
    assert process.stdin is not None
    assert process.stdout is not None
    reader = threading.Thread(target=load.read, args=(process.stdout,), daemon=True)
    reader.start()
    try:
        process.stdin.write(json.dumps(task) + "\n")
        process.stdin.flush()
        load.wait_learnt()
        load.wait_streams()
        yield load
    finally:
        process.kill()
        process.wait()
        reader.join(timeout=10)
