"""Envoy before gateways, with what ``docs/operations.md`` says a proxy before them needs."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.support.paths import ROOT
from tests.support.servers.redis_server import free_port

PROGRAM = ROOT / ".venv-clients-3" / "bin" / "envoy"
_TYPES = "type.googleapis.com/envoy.extensions"


@asynccontextmanager
async def envoy(folder: Path, gateways: Sequence[str], ca_path: Path) -> AsyncIterator[str]:
    """Yields the URL of an Envoy that takes plain HTTP and speaks TLS with the gateways.

    Args:
        folder: for its configuration and log.
        gateways: host:port of each.
        ca_path: who signed their certificates, which must name 127.0.0.1.
    """
    port = free_port()
    file, log = folder / "envoy.json", folder / "envoy.log"
    file.write_text(json.dumps(configuration(port, gateways, ca_path)))
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            PROGRAM, "--config-path", file, "--use-dynamic-base-id", "--concurrency", "1", "--log-level", "warning",
            stdout=out, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            assert process.returncode is None, log.read_text()
            process.kill()
            await process.wait()


def configuration(port: int, gateways: Sequence[str], ca_path: Path) -> dict[str, Any]:
    """Streams take as long as they take, nothing is buffered, and a gateway that is not ready gets nothing new."""
    router = {"name": "router", "typed_config": {"@type": f"{_TYPES}.filters.http.router.v3.Router"}}
    way = {"match": {"prefix": "/"}, "route": {"cluster": "gateways", "timeout": "0s"}}
    manager = {
        "@type": f"{_TYPES}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "in",
        "stream_idle_timeout": "0s",
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [way]}]},
        "http_filters": [router],
    }
    listener = {
        "address": _address("127.0.0.1", port),
        "filter_chains": [
            {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
        ],
    }
    return {"static_resources": {"listeners": [listener], "clusters": [_cluster(gateways, ca_path)]}}


def _cluster(gateways: Sequence[str], ca_path: Path) -> dict[str, Any]:
    ends = [{"endpoint": {"address": _address(*gateway.rsplit(":", 1))}} for gateway in gateways]
    trusted = {
        "trusted_ca": {"filename": str(ca_path)},
        "match_typed_subject_alt_names": [{"san_type": "IP_ADDRESS", "matcher": {"exact": "127.0.0.1"}}],
    }
    tls = {
        "@type": f"{_TYPES}.transport_sockets.tls.v3.UpstreamTlsContext",
        "common_tls_context": {"validation_context": trusted},
    }
    check = {"path": "/readyz"}
    return {
        "name": "gateways",
        "type": "STATIC",
        "connect_timeout": "5s",
        "load_assignment": {"cluster_name": "gateways", "endpoints": [{"lb_endpoints": ends}]},
        "transport_socket": {"name": "envoy.transport_sockets.tls", "typed_config": tls},
        # Gateways close idle connections after HTTP__KEEP_ALIVE_S, 75 s: a proxy closes them before.
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": f"{_TYPES}.upstreams.http.v3.HttpProtocolOptions",
                "common_http_protocol_options": {"idle_timeout": "60s"},
                "explicit_http_config": {"http_protocol_options": {}},
            }
        },
        "health_checks": [
            {
                "timeout": "5s", "interval": "0.1s", "unhealthy_threshold": 1, "healthy_threshold": 1,
                "no_traffic_interval": "0.1s",  # else a minute, until requests came
                "http_health_check": check,
            }
        ],
        # Without it a proxy sends requests to gateways that are not ready as soon as few are.
        "common_lb_config": {"healthy_panic_threshold": {"value": 0}},
    }  # fmt: skip


def _address(host: str, port: str | int) -> dict[str, Any]:
    return {"socket_address": {"address": host, "port_value": int(port)}}
