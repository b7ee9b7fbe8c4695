"""Pods that leave by eviction, so that budgets count, and nodes from which all of them do."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from stratos.cli.chaos.faults.contract import NoEffect, Proof
from stratos.cli.chaos.kube.api import MERGE_PATCH, KubeApi, Object
from stratos.cli.chaos.kube.release import Release, component, service_container
from stratos.common.errors import NotFound, Overloaded, StratosError

BUDGET_S, PAUSE_S, MARGIN_S = 120.0, 1.0, 60.0
"""Longest wait for a budget."""


async def evict(api: KubeApi, path: str, name: str) -> float:
    """Ask a pod to leave as soon as its budget allows it; returns how long that took.

    Raises:
        NoEffect: there is no such pod, or its budget lets none go.
    """
    began_s = time.monotonic()
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    while True:
        try:
            await api.call("POST", f"{path}/eviction", body)
            return round(time.monotonic() - began_s, 2)
        except NotFound:
            raise NoEffect(f"there is no pod {name} to evict") from None
        except Overloaded as error:
            if time.monotonic() - began_s > BUDGET_S:
                raise NoEffect(f"{name} may not leave: {error.message}") from None
        await asyncio.sleep(PAUSE_S)


async def leave(release: Release, pod: Object, in_effect: asyncio.Event) -> Proof:
    """Evict a pod, and follow it to its end.

    Raises:
        NoEffect: it did not leave, or was killed before it had let its work go.
    """
    name, before = pod["metadata"]["name"], service_container(pod)
    ended = asyncio.create_task(_end_of(release, pod))
    try:
        waited_s = await evict(release.api, release.pod_path(pod), name)
        in_effect.set()
        began_s = time.monotonic()
        state = await ended
    finally:
        ended.cancel()
    if state.get("exitCode") != 0:
        raise NoEffect(f"{name} did not end by itself: {state or 'it is still there'}")
    return {
        "pod": name,
        "container": before["containerID"].rpartition("/")[2][:12],
        "waited_for_budget_s": waited_s,
        "left_after_s": round(time.monotonic() - began_s, 2),
        "exit_code": 0,
        "reason": state.get("reason", ""),
    }


async def _end_of(release: Release, pod: Object) -> dict[str, Any]:
    """How the container of the service ended, as the last state of a pod that is gone says."""
    about = pod["metadata"]
    params = [("fieldSelector", f"metadata.name={about['name']}"), ("resourceVersion", about["resourceVersion"])]
    for_s = BUDGET_S + pod["spec"].get("terminationGracePeriodSeconds", 30) + MARGIN_S
    async for kind, found in release.api.watch(f"{release.path}/pods", params, for_s):
        if kind == "DELETED" and found["metadata"]["uid"] == about["uid"]:
            statuses = found["status"].get("containerStatuses") or ()
            states = [one["state"] for one in statuses if one["name"] == component(pod)]
            return dict(states[0].get("terminated") or {}) if states else {}
    return {}


async def drain_node(release: Release, node: str, in_effect: asyncio.Event) -> Proof:
    """Cordon a node, let the release's pods leave it, and uncordon it in the end.

    Raises:
        NoEffect: there is no such node, or nothing of the release on it, or a pod does not leave.
    """
    path = f"/api/v1/nodes/{node}"
    try:
        was_cordoned = (await release.api.call("GET", path))["spec"].get("unschedulable", False)
    except NotFound:
        raise NoEffect(f"there is no node {node}") from None
    pods = await _on_node(release, node)
    if not pods:
        raise NoEffect(f"no pod of the release runs on {node}")
    try:
        await _cordon(release.api, path, is_cordoned=True)
        proofs = await asyncio.gather(*(leave(release, pod, in_effect) for pod in pods.values()))
        left = await _on_node(release, node)
    finally:
        if not was_cordoned:
            await asyncio.shield(_cordon(release.api, path, is_cordoned=False))
    if left:
        raise NoEffect(f"{', '.join(left)} came to {node} though it was cordoned")
    return {"node": node, "left": sorted(pods), "slowest_s": max(proof["left_after_s"] for proof in proofs)}


async def _on_node(release: Release, node: str) -> dict[str, Object]:
    try:
        return {name: pod for name, pod in (await release.pods()).items() if pod["spec"].get("nodeName") == node}
    except NotFound:  # none is left anywhere
        return {}


async def _cordon(api: KubeApi, path: str, *, is_cordoned: bool) -> None:
    try:
        await api.call("PATCH", path, {"spec": {"unschedulable": is_cordoned or None}}, content_type=MERGE_PATCH)
    except StratosError as error:
        error.add_note(f"uncordon {path.rpartition('/')[2]} yourself")
        raise
