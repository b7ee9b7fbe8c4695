"""Rights that a run needs, asked for before anything breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass

from stratos.cli.chaos.kube.api import KubeApi
from stratos.cli.chaos.kube.cluster_faults import FROM_NODES
from stratos.common.errors import PermissionDenied


@dataclass(frozen=True, slots=True)
class Right:
    """A verb of a resource, which may name its sub-resource; without a namespace: in all of them."""

    verb: str
    resource: str
    namespace: str = ""
    group: str = ""

    def __str__(self) -> str:
        kind = f"{self.resource}.{self.group}" if self.group else self.resource
        return f"{self.verb} {kind}" + (f" in {self.namespace}" if self.namespace else "")


def rights_for(kinds: Collection[str], namespace: str, *, has_key: bool) -> list[Right]:
    """Rights that faults of these kinds need.

    Args:
        kinds: of faults.
        namespace: of the release.
        has_key: the admin key was given.
    """
    found = [Right("get", "pods", namespace), Right("list", "pods", namespace), Right("get", "pods/log", namespace)]
    found += [Right("list", "deployments", namespace, "apps")]
    found += [Right(verb, "pods/portforward", namespace) for verb in ("get", "create")]
    found += [Right(verb, "secrets", namespace) for verb in ("get", *(() if has_key else ("list",)))]
    if {"drain", "drain-node"} & set(kinds):
        found += [Right("watch", "pods", namespace), Right("create", "pods/eviction", namespace)]
    if "drain-node" in kinds:
        found += [Right("get", "nodes"), Right("patch", "nodes")]
    if set(FROM_NODES) & set(kinds):
        found += [Right(verb, "namespaces") for verb in ("create", "delete")]
        found += [Right(verb, "pods") for verb in ("create", "get")]
        found += [Right(verb, "pods/exec") for verb in ("get", "create")]
    return found


async def check_rights(api: KubeApi, rights: Collection[Right]) -> None:
    """Raise ``PermissionDenied`` with every right that is missing."""
    answers = await asyncio.gather(*(_has(api, right) for right in rights))
    missing = [str(right) for right, is_there in zip(rights, answers, strict=True) if not is_there]
    if missing:
        raise PermissionDenied(f"this run needs rights that you do not have: {', '.join(missing)}")


async def _has(api: KubeApi, right: Right) -> bool:
    resource, _, sub = right.resource.partition("/")
    asked = {"verb": right.verb, "group": right.group, "resource": resource}
    asked |= {"subresource": sub} if sub else {}
    asked |= {"namespace": right.namespace} if right.namespace else {}
    path, kind = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", "SelfSubjectAccessReview"
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": {"resourceAttributes": asked}}
    return bool((await api.call("POST", path, body))["status"].get("allowed"))
