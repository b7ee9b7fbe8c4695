"""Constant streaming load from a pod, while something happens to the cluster."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.kube.cluster.client import ClientPod
from tests.support.kube.cluster.commands import CommandFailed, wait_until
from tests.support.kube.cluster.release import Release

PROGRAM = Path(__file__).with_name("load_program.py")
NUM_AT_ONCE = 3
NUM_TOKENS = 64
STREAMS_TIMEOUT_S = 240.0
PAUSE_S = 3.0
"""Between two looks at what it said: each starts a process in the pod."""
PROMPT = "def read_lines(path):\n    with open(path, encoding='utf-8') as file:\n        return list(file)\n\n\n"


def bodies(num: int = 24) -> list[dict[str, Any]]:
    """Greedy and seeded streams; every prompt is another one, and long enough to be computed at a prefill worker."""
    sampling: tuple[dict[str, Any], ...] = ({"temperature": 0}, {"temperature": 0.8, "top_p": 0.95, "seed": 7})
    common = {"model": "base", "max_tokens": NUM_TOKENS, "ignore_eos": True, "return_token_ids": True}
    return [
        {**common, **sampling[index % 2], "prompt": f"# {index}\n{PROMPT * 2}def number_{index}("}
        for index in range(num)
    ]


@dataclass(frozen=True, slots=True)
class StreamingLoad:
    """The program runs in the pod by itself: a connection of kubectl does not outlive all that happens to a cluster."""

    pod: ClientPod
    folder: str

    def start(self, task: dict[str, Any]) -> None:
        """Its input is a file that is followed, so a line that is added later reaches it too."""
        self._shell(f"mkdir {self.folder} && cat >{self.folder}/program.py", PROGRAM.read_text())
        self._shell(f"cat >{self.folder}/in", json.dumps(task) + "\n")
        run = f"tail -f -n +1 {self.folder}/in | python -u {self.folder}/program.py >{self.folder}/out 2>&1"
        self._shell(f"({run}) </dev/null >/dev/null 2>&1 &")

    def said(self) -> dict[str, Any]:
        """Its last line; empty before the first one.

        Raises:
            CommandFailed: the program ended with an error.
        """
        lines = self._shell(f"tail -n 2 {self.folder}/out").split("\n")
        line = next((line for line in reversed(lines[:-1]) if line), "")  # the last one may be half written
        if line and not line.startswith("{"):
            raise CommandFailed(self._shell(f"tail -n 40 {self.folder}/out"))
        return dict(json.loads(line)) if line else {}

    def wait_learnt(self) -> None:
        """The undisturbed answers are known, and the load has begun."""
        wait_until("the undisturbed answers are known", lambda: bool(self.said()), STREAMS_TIMEOUT_S, PAUSE_S)

    def num_done(self) -> int:
        """Streams that ended as the undisturbed ones did."""
        return int(self.said().get("num_done", 0))

    def num_resumed(self) -> int:
        """Times that a client asked for the rest of a stream of which it had a part."""
        return int(self.said().get("num_resumed", 0))

    def wait_streams(self, num: int = 4 * NUM_AT_ONCE) -> None:
        """So many more end well."""
        start = self.num_done()
        try:
            wait_until(f"{num} more streams end", lambda: self.num_done() >= start + num, STREAMS_TIMEOUT_S, PAUSE_S)
        except AssertionError as error:
            raise CommandFailed(f"{error}; the load said {json.dumps(self.said())[:4000]}") from None

    def figures(self) -> dict[str, Any]:
        """For a report; fails where a stream failed or had other tokens.

        Raises:
            AssertionError: with those streams.
        """
        self.stop()
        wait_until("the load ends", lambda: self.said()["event"] == "end", STREAMS_TIMEOUT_S, PAUSE_S)
        found = self.said()
        assert not found["num_failed"] + found["num_different"], json.dumps(found)[:4000]
        assert found["num_done"] > 0
        came_back = {}
        if found["num_came_back"]:
            came_back = {
                "times that a client came back": found["num_came_back"],
                "with a part of its stream": found["num_resumed"],
                "streams without a record": found["num_unrecorded"],
            }
        return came_back | {
            "streams, all tokens equal": found["num_done"], "streams failed": 0,
            "streams ended by a gateway's drain limit": found["num_ended_by_drain"],
            "longest gap, s": found["longest_gap_s"], "under load, s": found["seconds"],
        }  # fmt: skip

    def stop(self) -> None:
        """Let open streams end, and begin no more."""
        self._shell(f"echo stop >>{self.folder}/in")

    def _shell(self, script: str, stdin: str = "") -> str:
        return self.pod.kubectl("exec", "-i", self.pod.name, "--", "sh", "-c", script, stdin=stdin)


@contextmanager
def streaming_load(
    pod: ClientPod, release: Release, *, num_at_once: int = NUM_AT_ONCE, comes_back: bool = False
) -> Iterator[StreamingLoad]:
    """Streams through the Service's address, so that a lost name server is no matter of the load.

    Args:
        pod: that it runs in.
        release: that answers.
        num_at_once: open streams.
        comes_back: each has a record, and its client comes back when it is cut.
    """
    service = json.loads(release.kubectl("get", "service", f"{release.name}-gateway", "-o", "json"))
    url = f"http://{service['spec']['clusterIP']}/v1/completions"
    load = StreamingLoad(pod, f"/tmp/load-{secrets.token_hex(4)}")
    task = {"url": url, "key": release.api_key(), "bodies": bodies(), "concurrency": num_at_once}
    load.start(task | {"comes_back": comes_back})
    try:
        load.wait_learnt()
        load.wait_streams()
        yield load
    finally:
        load.stop()
