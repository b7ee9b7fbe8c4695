"""``stratos chaos --kube`` against an API server whose pods are processes of this machine."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from stratos.cli.chaos.faults.contract import BROKEN, NOTHING, NoEffect
from stratos.cli.chaos.faults.fault import Fault
from stratos.cli.chaos.kube import on_node
from stratos.cli.chaos.kube.api import KubeApi, opened_api
from stratos.cli.chaos.kube.channels import forwarded, run_python
from stratos.cli.chaos.kube.cluster_faults import CLUSTER, ClusterFaults
from stratos.cli.chaos.kube.cluster_target import ClusterTarget
from stratos.cli.chaos.kube.node_pods import NodePods
from stratos.cli.chaos.kube.release import Release, ReleasePlace, metric_of
from stratos.cli.chaos.kube.rights import check_rights, rights_for
from stratos.common.errors import BadRequest, DependencyDown, NotFound, PermissionDenied
from tests.support.fakes.kubernetes_pods import NAMESPACE, NODE, PODS, READY, FakePods, fake_pods
from tests.support.waiting import LIMIT_S, eventually

ENDS_BADLY = f"import os, signal; signal.signal(signal.SIGTERM, lambda *_: os._exit(3)); {READY}; signal.pause()"
ANSWERS = """
import http.server, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = b"# TYPE running gauge\\nrunning{pool=\\"a\\"} 2\\nrunning{pool=\\"b\\"} 3\\n"
        self.send_response(200); self.send_header("content-length", str(len(body))); self.end_headers()
        if self.path == "/half":
            self.wfile.write(body[:5]); self.wfile.flush(); os._exit(1)
        self.wfile.write(body)
    log_message = lambda *_: None
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print("ready", server.server_port, flush=True)
server.serve_forever()
"""


SHOWS = """
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(%r.encode())
    log_message = lambda *_: None
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print("ready", server.server_port, flush=True)
server.serve_forever()
"""
ROUTER_SEES = """# TYPE stratos_router_workers gauge
stratos_router_workers{role="decode",state="live"} %d
stratos_router_workers{role="prefill",state="asleep"} 1
stratos_router_workers{role="decode",state="out"} 3
"""
HANDOFFS = """# TYPE stratos_kv_handoffs_total counter
stratos_kv_handoffs_total{side="receiver",outcome="committed"} 9
stratos_kv_handoffs_total{side="receiver",outcome="part"} 1
stratos_kv_handoffs_total{side="receiver",outcome="peer_lost"} 4
stratos_kv_handoffs_total{side="source",outcome="peer_lost"} 7
"""
IS_BUSY = """# TYPE stratos_requests_running gauge
stratos_requests_running 1
# TYPE stratos_kv_staging_slots gauge
stratos_kv_staging_slots{state="free"} 4
"""


LISTENS = """
import socket
listening = socket.create_server(("10.213.7.2", 0))
print(listening.getsockname()[1], flush=True)
while True:
    listening.accept()
"""


@asynccontextmanager
async def opened(cluster: FakePods) -> AsyncIterator[tuple[Release, NodePods, ClusterFaults]]:
    from kubernetes.aio.client import Configuration

    api = KubeApi(Configuration(host=cluster.url))
    release, nodes = Release(api, ReleasePlace(namespace=NAMESPACE, release="stratos")), NodePods(api, {NODE: "image"})
    try:
        yield release, nodes, ClusterFaults(release, nodes)
    finally:
        await nodes.remove()
        await api.close()


@pytest.mark.parametrize("kind", ["kill", "stop", "slow"])
async def test_a_fault_proves_its_effect_on_the_process_of_a_pod(kind: str) -> None:
    async with fake_pods() as cluster, opened(cluster) as (_, nodes, faults):
        name = await cluster.add_pod("decode-worker")
        pid, in_effect = cluster.containers[name].process.pid, asyncio.Event()
        proof = await faults.strike(Fault(kind, "decode-0", lasting_s=0.3), in_effect)
        assert (proof["pod"], proof["node"], proof["pid"]) == (name, NODE, pid)
        assert in_effect.is_set()
        if kind == "kill":
            assert (proof["exit_code"], proof["restarts"]) == (137, 1)
        else:
            assert psutil.Process(pid).status() != psutil.STATUS_STOPPED
        assert cluster.namespaces == [nodes.namespace]
        await nodes.remove()
        assert cluster.namespaces == []


@pytest.mark.parametrize("kind", CLUSTER.kinds)
async def test_a_fault_aimed_at_nothing_has_no_effect(kind: str) -> None:
    async with fake_pods() as cluster, opened(cluster) as (_, _, faults):
        name = await cluster.add_pod("decode-worker")
        with pytest.raises(NoEffect, match=r"there is no (process|pod|node)"):
            await faults.strike(Fault(kind, NOTHING, lasting_s=0.1), asyncio.Event())
        assert cluster.containers[name].process.returncode is None


async def test_a_process_that_is_killed_in_another_way_fails_the_check() -> None:
    """The proof is what the kubelet says, so a pod whose process ended by itself is no proof of a kill."""
    async with fake_pods() as cluster, opened(cluster) as (_, _, faults):
        name = await cluster.add_pod("decode-worker")
        container = cluster.containers[name]
        shown = cluster.shown

        async def with_another_code(name: str) -> dict[str, object]:
            found = await shown(name)
            for status in found["status"]["containerStatuses"]:
                status["lastState"].get("terminated", {})["exitCode"] = 1
            return found

        cluster.shown = with_another_code  # type: ignore[method-assign]
        with pytest.raises(NoEffect, match="ended with code 1, not by SIGKILL"):
            await faults.strike(Fault("kill", "decode-0"), asyncio.Event())
        assert container.restarts == 1


async def test_a_process_that_goes_on_under_the_fault_is_no_effect() -> None:
    async with fake_pods() as cluster, opened(cluster) as (_, _, faults):
        name = await cluster.add_pod("decode-worker")
        in_effect = asyncio.Event()
        strike = asyncio.create_task(faults.strike(Fault("stop", "decode-0", lasting_s=2), in_effect))
        await asyncio.wait_for(in_effect.wait(), LIMIT_S)
        os.kill(cluster.containers[name].process.pid, signal.SIGCONT)
        with pytest.raises(NoEffect, match="computed while it should have stood still"):
            await strike


async def test_a_run_that_is_cancelled_leaves_no_process_that_stands_still_and_no_pod() -> None:
    async with fake_pods() as cluster, opened(cluster) as (_, nodes, faults):
        name = await cluster.add_pod("decode-worker")
        process, in_effect = psutil.Process(cluster.containers[name].process.pid), asyncio.Event()
        strike = asyncio.create_task(faults.strike(Fault("stop", "decode-0", lasting_s=1), in_effect))
        await asyncio.wait_for(in_effect.wait(), LIMIT_S)
        strike.cancel()
        with pytest.raises(asyncio.CancelledError):
            await strike
        assert process.status() == psutil.STATUS_STOPPED
        await nodes.remove()
        assert process.status() != psutil.STATUS_STOPPED
        assert cluster.namespaces == []


async def test_a_program_that_nothing_listens_to_any_more_still_wakes_what_it_stopped() -> None:
    async with fake_pods() as cluster:
        process = psutil.Process(cluster.containers[await cluster.add_pod("decode-worker")].process.pid)
        task = {"kind": "stop", "pid": process.pid, "lasting_s": 1}
        read_fd, write_fd = os.pipe()
        program = await asyncio.create_subprocess_exec(
            sys.executable, on_node.__file__, json.dumps(task), stdout=write_fd, stderr=asyncio.subprocess.DEVNULL
        )
        os.close(write_fd)
        await asyncio.to_thread(os.read, read_fd, 100)
        assert process.status() == psutil.STATUS_STOPPED
        os.close(read_fd)
        assert await program.wait() != 0, "its proof had no reader"
        assert process.status() != psutil.STATUS_STOPPED


async def test_what_is_left_is_named_where_the_run_cannot_be_removed() -> None:
    async with fake_pods() as cluster, opened(cluster) as (_, nodes, _):
        await nodes.make()
        (name,) = cluster.namespaces
        cluster.is_down = True
        with pytest.raises(DependencyDown, match=f"delete the namespace {name} yourself"):
            await nodes.remove()


async def test_a_drained_pod_waits_for_its_budget_and_leaves_by_itself() -> None:
    async with fake_pods() as cluster, opened(cluster) as (_, _, faults):
        cluster.num_refused_evictions = 1
        name, in_effect = await cluster.add_pod("decode-worker"), asyncio.Event()
        proof = await faults.strike(Fault("drain", "decode-0"), in_effect)
        assert (proof["pod"], proof["exit_code"]) == (name, 0)
        assert proof["waited_for_budget_s"] >= 1
        assert in_effect.is_set()


async def test_a_pod_that_is_killed_while_it_leaves_did_not_drain() -> None:
    async with fake_pods() as cluster, opened(cluster) as (_, _, faults):
        await cluster.add_pod("decode-worker", program=ENDS_BADLY)
        with pytest.raises(NoEffect, match="did not end by itself"):
            await faults.strike(Fault("drain", "decode-0"), asyncio.Event())


async def test_a_node_is_uncordoned_whatever_becomes_of_its_drain() -> None:
    async with fake_pods() as cluster, opened(cluster) as (_, _, faults):
        await cluster.add_pod("decode-worker")
        await cluster.add_pod("gateway")
        proof = await faults.strike(Fault("drain-node", NODE), asyncio.Event())
        assert (proof["left"], cluster.pods) == (["decode-0", "gateway-0"], {})
        assert cluster.node["spec"]["unschedulable"] is None
        await cluster.add_pod("decode-worker")
        cluster.num_refused_evictions = 10**6
        strike = asyncio.create_task(faults.strike(Fault("drain-node", NODE), asyncio.Event()))
        await eventually(lambda: cluster.node["spec"]["unschedulable"] is True)
        strike.cancel()
        with pytest.raises(asyncio.CancelledError):
            await strike
        assert cluster.node["spec"]["unschedulable"] is None
        cluster.num_refused_evictions, cluster.node["spec"]["unschedulable"] = 0, True
        await faults.strike(Fault("drain-node", NODE), asyncio.Event())
        assert cluster.node["spec"]["unschedulable"] is True, "it was cordoned before"


async def test_connections_go_to_the_ready_gateways_by_turns_and_end_with_them() -> None:
    async with fake_pods() as cluster, opened(cluster) as (release, _, _):
        names = [await cluster.add_pod("gateway", program=ANSWERS, ports=("http", "metrics")) for _ in range(2)]
        picked: list[str] = []

        async def pick() -> tuple[str, int]:
            path, port = await release.next_gateway("http")
            picked.append(path)
            return path, port

        async with (
            forwarded(release.api, pick) as address,
            httpx.AsyncClient(trust_env=False, timeout=LIMIT_S) as client,
        ):
            for _ in range(2):
                assert (await client.get(f"http://{address}/", headers={"connection": "close"})).status_code == 200
            assert sorted(picked) == [f"{PODS}/{name}" for name in names]
            first, second = [await release.metrics(await release.pod(name)) for name in ("gateway-0", "gateway-1")]
            assert metric_of(first, "running") == 5
            assert metric_of(second, "running", {"pool": "b"}) == 3
            with pytest.raises(NotFound, match="no metric walking"):
                metric_of(first, "walking")
            with pytest.raises(httpx.RemoteProtocolError):
                await client.get(f"http://{address}/half", headers={"connection": "close"})
            cluster.pods.clear()
            with pytest.raises(httpx.HTTPError):
                await client.get(f"http://{address}/", headers={"connection": "close"})


async def test_a_release_is_whole_when_every_router_sees_every_worker() -> None:
    async with fake_pods() as cluster, opened(cluster) as (release, nodes, _):
        unused: Any = None
        target = ClusterTarget(release, "http://127.0.0.1:1/v1", unused, nodes)
        seen = ROUTER_SEES % 1
        await cluster.add_pod("router", program=SHOWS % seen, ports=["metrics"])
        working = await cluster.add_pod("decode-worker", program=SHOWS % IS_BUSY, ports=["metrics"])
        assert not await target.is_whole(), "the router sees one that is not there"
        await cluster.add_pod("prefill-worker", ports=["metrics"])
        assert await target.is_whole()
        assert await target.is_busy({"decode-0"})
        assert not await target.is_busy({"prefill-0"}), "it does not answer"
        cluster.pods[working]["status"]["conditions"] = []
        assert not await target.is_whole()


async def test_broken_hand_offs_are_those_that_decode_workers_saw() -> None:
    async with fake_pods() as cluster, opened(cluster) as (release, _, faults):
        await cluster.add_pod("decode-worker", program=SHOWS % HANDOFFS, ports=["metrics"])
        await cluster.add_pod("decode-worker", ports=["metrics"])
        assert await release.broken_handoffs() == 4
        await cluster.add_pod("prefill-worker")
        proof = await faults.strike(Fault("stop", "prefill-0", lasting_s=0.1), asyncio.Event())
        assert proof[BROKEN] == 0, "none while it lasted"


async def test_moved_streams_are_those_of_the_gateways_logs() -> None:
    async with fake_pods() as cluster, opened(cluster) as (release, nodes, _):
        unused: Any = None
        target = ClusterTarget(release, "", unused, nodes)
        for line in (
            "request s1-0 goes on elsewhere: it leaves",
            "request s1-1 ends",
            "request s2-1 goes on elsewhere:",
        ):
            name = await cluster.add_pod("gateway")
            cluster.logs[name] = line
        assert await target.moved("s1") == {"s1-0"}


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("ip"), reason="networks are made by root, with ip")
async def test_a_partition_drops_what_comes_and_goes_and_lets_it_pass_in_the_end(network: str) -> None:
    """On the program of the node alone: the fake's pods are in no network of their own."""
    listening = [*f"ip netns exec {network} {sys.executable} -c".split(), LISTENS]
    process = await asyncio.create_subprocess_exec(*listening, stdout=-1)
    try:
        assert process.stdout is not None
        port = int(await process.stdout.readline())
        task = {"kind": "partition", "pid": process.pid, "lasting_s": 0, "address": "10.213.7.2", "port": None}
        program = await asyncio.create_subprocess_exec(sys.executable, on_node.__file__, json.dumps(task), stdout=-1)
        quiet = (await program.communicate())[0].decode()
        task |= {"port": port, "lasting_s": 0.5}
        program = await asyncio.create_subprocess_exec(sys.executable, on_node.__file__, json.dumps(task), stdout=-1)
        in_effect, outcome = map(json.loads, (await program.communicate())[0].splitlines())
        if "6.6 does" in str(outcome):
            pytest.skip(outcome["no_effect"])
        assert in_effect == {"in_effect": True}
        assert outcome["proof"]["packets_in_dropped"] > 0
        assert outcome["proof"]["refused_at_ports"] == 1
        _, writer = await asyncio.wait_for(asyncio.open_connection("10.213.7.2", port), LIMIT_S)
        writer.close()
        assert "no packet came or went" in quiet, "before anyone spoke"
    finally:
        process.kill()
        await process.wait()


@pytest.fixture
def network() -> Iterator[str]:
    """A network that this machine reaches at 10.213.7.2."""
    name = f"chaos-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], check=False)
    if made.returncode:
        pytest.skip("this machine makes no networks")
    inside, link = ["ip", "netns", "exec", name, "ip"], f"ch{os.getpid()}"
    try:
        for command in (
            ["ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", name],
            ["ip", "addr", "add", "10.213.7.1/24", "dev", link],
            ["ip", "link", "set", link, "up", "addrgenmode", "none"],  # IPv6 speaks by itself
            [*inside, "addr", "add", "10.213.7.2/24", "dev", "eth0"],
            [*inside, "link", "set", "eth0", "up", "addrgenmode", "none"],
        ):
            subprocess.run(command, check=True)
        yield name
    finally:
        subprocess.run(["ip", "netns", "del", name], check=True)


async def test_a_program_that_fails_says_why() -> None:
    async with fake_pods() as cluster, opened(cluster) as (release, _, _):
        with pytest.raises(DependencyDown, match="ZeroDivisionError"):
            [line async for line in run_python(release.api, "/api/v1/namespaces/x/pods/p", "1 / 0", {})]


async def test_missing_rights_are_named_before_anything_breaks() -> None:
    async with fake_pods() as cluster, opened(cluster) as (release, _, _):
        wanted = rights_for({"kill", "drain", "drain-node"}, NAMESPACE, has_key=False)
        await check_rights(release.api, wanted)
        cluster.denied = {"pods/eviction", "nodes", "namespaces"}
        with pytest.raises(PermissionDenied) as refused:
            await check_rights(release.api, wanted)
        for right in (
            f"create pods/eviction in {NAMESPACE}",
            "patch nodes",
            "create namespaces",
            "delete namespaces",
        ):
            assert right in refused.value.message
        assert "pods/exec" not in refused.value.message
        assert not {right.resource for right in rights_for({"drain"}, NAMESPACE, has_key=True)} & {
            "namespaces",
            "nodes",
        }


async def test_a_kubeconfig_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="no cluster is known"):
        async with opened_api(tmp_path / "none", ""):
            pass
