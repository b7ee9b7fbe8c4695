"""Which cluster: one of this machine, or at an address; only with token authentication, and without statistics sent.

A client that reaches a cluster without tokens runs code on all its nodes (CVE-2023-48022).
"""

from __future__ import annotations

import logging
import os
import re
import secrets
from importlib import metadata
from typing import Any

from stratos.common.errors import BadRequest, DependencyDown, PermissionDenied
from stratos_offline.options import EngineAsk, JobOptions
from stratos_offline.pools.contract import BlockPool

LOCAL = "local"
MODE_ENV = "RAY_AUTH_MODE"
TOKEN_ENV, TOKEN_PATH_ENV = "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
FIRST_WITH_TOKENS = (2, 52)
_AGENT_ENV, _AGENT_MS = "RAY_agent_register_timeout_ms", "120000"
"""On a busy machine Ray's own agent takes longer than the half a minute that Ray gives it."""
_STORE_BYTES = 200 * 1024 * 1024
"""Object store of a cluster of this machine: blocks do not pass through it."""


def open_pool(ask: EngineAsk, endpoint: str, options: JobOptions) -> BlockPool:
    """Connect, and make the pool.

    Raises:
        DependencyDown: Ray is not installed, or no cluster answers with this token.
        PermissionDenied: the cluster asks for no token.
    """
    prepare_environment(_version(), allow_open=options.allow_open_cluster)
    connect(options)
    from stratos_offline.cluster.pool import RayPool

    return RayPool(ask, endpoint, options)


def prepare_environment(version: tuple[int, int], *, allow_open: bool) -> None:
    """Settings that Ray reads at its first import.

    Args:
        version: of the installed Ray.
        allow_open: go on without tokens.

    Raises:
        PermissionDenied: this version has none, or they were turned off.
    """
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    if allow_open:
        return
    if version < FIRST_WITH_TOKENS:
        shown = ".".join(map(str, FIRST_WITH_TOKENS))
        raise PermissionDenied(f"Ray has tokens from {shown} on; --allow-open-cluster goes without them")
    if os.environ.setdefault(MODE_ENV, "token") != "token":
        raise PermissionDenied(f"{MODE_ENV} is not token; --allow-open-cluster goes without tokens")


def connect(options: JobOptions) -> None:
    """Join the cluster, unless this process has done so."""
    import ray

    if ray.is_initialized():
        return
    if "://" in options.ray:
        raise BadRequest("the driver runs at a node of the cluster: --ray auto, or host:port", param="--ray")
    own: dict[str, Any] = {}
    if options.ray == LOCAL:
        own = {"object_store_memory": _STORE_BYTES, "include_dashboard": False}
        if TOKEN_ENV not in os.environ and TOKEN_PATH_ENV not in os.environ:
            os.environ[TOKEN_ENV] = secrets.token_hex(32)  # else Ray leaves one in the home folder
        os.environ.setdefault(_AGENT_ENV, _AGENT_MS)
    try:
        ray.init(address=options.ray, logging_level=logging.WARNING, log_to_driver=False, **own)
    except Exception as error:  # the edge of a foreign library, which raises the bare class as well
        text = f"no Ray cluster answers at {options.ray}, or not with this token: {_first_line(error)}"
        raise DependencyDown(text) from error
    if not options.allow_open_cluster and not _asks_for_tokens():
        ray.shutdown()
        raise PermissionDenied("the cluster asks for no token; --allow-open-cluster takes it all the same")


def _asks_for_tokens() -> bool:
    import ray

    try:
        return bool(ray.get(ray.remote(has_tokens).options(num_cpus=0).remote()))
    except Exception as error:  # the edge of a foreign library; a node without this package is one case
        raise DependencyDown(f"no node of the cluster says whether it asks for tokens: {_first_line(error)}") from error


def has_tokens() -> bool:
    """Whether the node that this runs at asks for tokens; its processes have the mode of the cluster."""
    return os.environ.get(MODE_ENV, "").lower() == "token"


def _version() -> tuple[int, int]:
    try:
        found = re.match(r"(\d+)\.(\d+)", metadata.version("ray"))
    except metadata.PackageNotFoundError as error:
        raise DependencyDown("--ray needs Ray: pip install 'stratosserve[ray]'") from error
    assert found is not None, "versions begin with two numbers"
    return int(found[1]), int(found[2])


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:300]
