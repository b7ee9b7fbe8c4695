"""Who may reach whom: what the chart declares, and what a cluster lets through."""

from __future__ import annotations

import json
from dataclasses import dataclass

import yaml

from tests.support.kube.cluster.client import ClientPod
from tests.support.kube.cluster.release import CHART, Release
from tests.support.paths import ROOT

PORTS = {"http": 8000, "grpc": 9000, "metrics": 9100, "redis": 6379, "objects": 9300}
SERVED = {
    "gateway": ("http", "grpc", "metrics"), "router": ("grpc", "metrics"), "prefill-worker": ("grpc", "metrics"),
    "decode-worker": ("grpc", "metrics"), "lora-registry": ("grpc", "metrics"), "autoscaler": ("grpc", "metrics"),
    "redis": ("redis",), "object-store": ("objects",),
}  # fmt: skip
CONNECT = """
import asyncio, json, sys

async def reaches(address, port):
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(address, port), 4)
    except (OSError, asyncio.TimeoutError):
        return False
    writer.close()
    return True

async def main():
    targets = json.loads(sys.stdin.readline())
    print(json.dumps(await asyncio.gather(*(reaches(*target) for target in targets))))

asyncio.run(main())
"""


@dataclass(frozen=True, slots=True, order=True)
class Edge:
    source: str
    target: str
    port: str


def declared(sources: list[str], *, conditions: frozenset[str]) -> set[Edge]:
    """Edges of the chart's table between components whose ports are known in advance."""
    table = yaml.safe_load((ROOT / CHART / "files" / "edges.yaml").read_text())["edges"]
    return {
        Edge(row["from"], row["to"], row["port"])
        for row in table
        if row["from"] in sources and row["port"] in PORTS and row.get("when", "") in conditions | {""}
    }


def targets(release: Release) -> list[tuple[str, str, str]]:
    """(component, port's name, address) of one pod of each component."""
    addresses = {
        pod["metadata"]["labels"]["app.kubernetes.io/component"]: pod["status"]["podIP"] for pod in release.pods()
        if pod["status"]["phase"] == "Running"
    }  # fmt: skip
    return [(name, port, addresses[name]) for name, ports in SERVED.items() for port in ports]


def open_edges(pod: ClientPod, source: str, reachable: list[tuple[str, str, str]]) -> set[Edge]:
    """What connects from the pod; a pod's way to itself is no edge."""
    answers = json.loads(pod.python(CONNECT, [[address, PORTS[port]] for _, port, address in reachable]))
    return {Edge(source, name, port) for (name, port, _), is_open in zip(reachable, answers, strict=True) if is_open}
