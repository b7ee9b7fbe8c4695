"""What a Prometheus of the cluster is to notice: faults that begin, and end when their context does."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.support.kube.cluster import nodes
from tests.support.kube.cluster.client import ClientPod
from tests.support.kube.cluster.commands import wait_until
from tests.support.kube.cluster.crashes import Crasher
from tests.support.kube.cluster.programs import FLOOD, STREAM
from tests.support.kube.cluster.release import Release
from tests.support.kube.cluster.settings import ClusterSettings

NUM_KILLED = 5
FLOOD_S, FLOOD_AT_ONCE = 240.0, 24
ANSWER_S = 300.0
"""For one of the flood: a minute in the queue, which its plan allows, and 400 steps where no core is left."""
FULL_PROMPT, FULL_TOKENS = 3640, 440
"""Of 4,096 tokens of KV: the prompt is let in, as outputs are expected to be short; this one goes on above 95 %."""


@dataclass(frozen=True, slots=True)
class Faults:
    """One release; the client's pod sends what a fault needs."""

    release: Release
    client: ClientPod
    cluster: ClusterSettings
    lost_node: str
    crasher: Crasher

    @contextmanager
    def killed_worker(self) -> Iterator[None]:
        """Its process ends at once, and is started again."""
        self._kill_worker(0)
        yield
        self._wait_serving()

    @contextmanager
    def killed_again_and_again(self) -> Iterator[None]:
        """More often than bad luck explains."""
        for number in range(NUM_KILLED):
            self._kill_worker(number)
            self._wait_serving()
            self._ask_short()
        yield

    @contextmanager
    def no_redis(self) -> Iterator[None]:
        """No pod of it; its volume stays."""
        name = f"deployment/{self.release.name}-redis"
        self.release.kubectl("scale", name, "--replicas=0")
        yield
        self.release.kubectl("scale", name, "--replicas=1")
        self._wait_serving()

    @contextmanager
    def cut_node(self) -> Iterator[None]:
        """A decode worker goes on there, and nothing reaches it."""
        there = nodes.components_on(self.release, self.lost_node)
        assert set(there) == {"decode-worker"}, there
        nodes.disturb(self.cluster, "cut", self.lost_node)
        try:
            yield
        finally:
            nodes.disturb(self.cluster, "join", self.lost_node)
        nodes.wait_ready(self.release, self.lost_node)

    @contextmanager
    def short_certificates(self) -> Iterator[None]:
        """The renewal issues them for five days."""
        self._renew("--lifetime-days=5", "--all")
        yield
        self._renew("--all")

    @contextmanager
    def full_queue(self) -> Iterator[None]:
        """More requests at once than batches and queue hold."""
        body = {"model": "base", "prompt": "def f(", "max_tokens": 400, "ignore_eos": True}
        task = [self._url(), self.release.api_key(), body, FLOOD_AT_ONCE, FLOOD_S, ANSWER_S]
        with ThreadPoolExecutor(1) as pool:
            flood = pool.submit(self.client.python, FLOOD, task, FLOOD_S + ANSWER_S + 60)
            yield
            statuses = json.loads(flood.result())
        assert statuses.keys() <= {"200", "503"}, statuses
        assert statuses["200"], "what was let in was served"

    @contextmanager
    def full_pool(self) -> Iterator[None]:
        """One request that grows until the pool has nothing left."""
        body = {"model": "base", "prompt": [7] * FULL_PROMPT, "max_tokens": FULL_TOKENS, "ignore_eos": True}
        with ThreadPoolExecutor(1) as pool:
            task = [self._url(), self.release.api_key(), body | {"stream": True}]
            answer = pool.submit(self.client.python, STREAM, task, 600)
            yield
            events = json.loads(answer.result())["events"]
        assert events[-1] == "[DONE]", events[-1]

    def _kill_worker(self, number: int) -> None:
        """One after the other; returns when the kubelet has seen it."""
        chosen = f"{self.release.selector},app.kubernetes.io/component=decode-worker"
        pods = [
            pod for pod in self.release.kubectl.items("pods", chosen) if "deletionTimestamp" not in pod["metadata"]
        ]  # fmt: skip
        before = sum(self.release.restarts().values())
        self.crasher.kill(pods[number % len(pods)])
        wait_until("it is started again", lambda: sum(self.release.restarts().values()) > before, 180)

    def _wait_serving(self) -> None:
        wait_until("all pods are ready", lambda: not self.release.unready(), 300)

    def _ask_short(self) -> None:
        body = {"model": "base", "prompt": "def f(", "max_tokens": 2}
        assert self.client.stream(self._url(), self.release.api_key(), body).status == 200

    def _url(self) -> str:
        return f"http://{self.release.name}-gateway/v1/completions"

    def _renew(self, *flags: str) -> None:
        """A run of the renewal with other flags; a later flag counts."""
        kubectl = self.release.kubectl
        job: dict[str, Any] = json.loads(
            kubectl("create", "job", "renew", f"--from=cronjob/{self.release.name}-certificates",
                    "--dry-run=client", "-o", "json")
        )  # fmt: skip
        job["spec"]["template"]["spec"]["containers"][0]["command"] += flags
        kubectl("create", "-f", "-", stdin=json.dumps(job))
        kubectl("wait", "--for=condition=Complete", "job/renew", "--timeout=300s", timeout_s=310)
        kubectl("delete", "job", "renew")


def watch(firing: Callable[[], set[str]], expected: set[str], limit_s: float, quiet_s: float) -> set[str]:
    """What was raised until ``expected`` was, and for ``quiet_s`` after that; at most ``limit_s``."""
    seen: set[str] = set()
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        seen |= firing()
        if seen >= expected:
            end = min(end, time.monotonic() + quiet_s)
        time.sleep(1)
    return seen
