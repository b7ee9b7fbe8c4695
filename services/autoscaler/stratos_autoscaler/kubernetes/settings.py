"""Settings of the autoscaler in a cluster."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesConfig:
    """Where the API server is, and what of it is this release's."""

    namespace: str = ""
    """Namespace of the release; empty: this autoscaler is not in a cluster."""
    release: str = ""
    """Label `release` of the numbers that HPAs and KEDA ask for: releases of one namespace share names of models.
    Empty: they have no such label."""
    api_server: str = ""
    """URL of the API server; empty takes that of the pod, with its ServiceAccount."""
    lease_name: str = "stratos-autoscaler"
    """Lease of which one holder acts."""
    pod_selector: str = ""
    """Labels of the release's worker pods, as in `kubectl get pods -l`."""
    follow_pools: bool = False
    """Further pools are what the Deployments with these labels say in their annotation `stratosserve.io/pool`, as JSON
    with the fields of `pools`: one that comes, changes or goes is taken in without a restart."""
    model_templates: str = ""
    """ConfigMap with the objects of models to come. With it, objects of kind `Model` in the namespace are brought up;
    empty: they are left alone."""
    model_selector: str = ""
    """Labels of the `Model`s that this release takes; empty: all of the namespace."""
    model_drain_s: float = 600.0
    """Longest wait for the requests of a `Model` that was deleted, once its records are gone; then its workers end."""
    worker_port: int = 9000
    """gRPC port of the workers' pods, for drains."""
    mark_interval_s: float = 15.0
    """How often the pods of pools that an HPA scales get their pod-deletion-cost, where it has changed."""
