"""TLS of the Redis that a release has of its own: what the chart renders, run by a Redis of this machine."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from typer.testing import CliRunner

from scripts.chart.rendering import NO_RENDERER, RenderError, has_renderer
from stratos.cli.main import app
from stratos.store.redis import open_redis
from tests.support.kube.chart_objects import Object, container, kinds, one, variables
from tests.support.kube.chart_rendering import checked, rendered
from tests.support.servers.redis_server import free_port
from tests.support.waiting import eventually

pytestmark = pytest.mark.skipif(not has_renderer(), reason=NO_RENDERER)
VALUES: dict[str, Any] = {"redis": {"tls": {"enabled": True}}}
HOST = "demo-redis"


def test_every_pod_that_calls_it_has_its_authority_and_calls_it_by_a_name_of_its_certificate() -> None:
    found, callers = checked(VALUES), 0
    jobs = [o for name, o in kinds(found, "Job").items() if name.startswith("demo-certificates")]
    (job,) = [o for o in jobs if "issue" in o["spec"]["template"]["spec"]["containers"][0]["command"]]
    issued = job["spec"]["template"]["spec"]["containers"][0]["command"]
    for pod in pods(found):
        for one_of_pod in pod["containers"]:
            url = next((v for n, v in variables(one_of_pod).items() if n.endswith("REDIS_URL")), "")
            if not url:
                continue
            callers += 1
            parts = urlsplit(url)
            (path,) = parse_qs(parts.query)["ssl_ca_certs"]
            assert (parts.scheme, parts.hostname) == ("rediss", HOST)
            assert f"--dns-name=redis={HOST}" in issued
            (mount,) = [m for m in one_of_pod["volumeMounts"] if m["mountPath"] == str(Path(path).parent)]
            (volume,) = [v for v in pod["volumes"] if v["name"] == mount["name"]]
            assert volume["secret"] == {"secretName": "demo-tls-redis", "items": [{"key": "ca.crt", "path": "ca.crt"}]}
    assert callers >= 5, "gateway, registry, toolbox and jobs"


def pods(objects: list[Object]) -> Iterator[Object]:
    for kind in ("Deployment", "Job", "CronJob"):
        for found in kinds(objects, kind).values():
            spec = found["spec"]["jobTemplate"]["spec"] if kind == "CronJob" else found["spec"]
            yield spec["template"]["spec"]


def test_its_certificate_is_one_of_mtls() -> None:
    with pytest.raises(RenderError, match="one of mtls, which is off"):
        rendered(VALUES | {"mtls": {"enabled": False}, "autoscaling": {"metricsApi": {"owner": "other"}}})
    manager = rendered(VALUES | {"mtls": {"source": "certManager"}})
    assert HOST in one(manager, "Certificate", "demo-tls-redis")["spec"]["dnsNames"]
    plain = checked({})
    assert variables(container(plain, "demo-gateway"))["STRATOS_GATEWAY_REDIS_URL"].startswith("redis://")
    assert "redis-ca" not in str(one(plain, "Deployment", "demo-gateway")["spec"])


async def serial_of(port: int, ca_path: Path) -> int:
    """Of the certificate that the server shows."""
    context = ssl.create_default_context(cafile=os.fspath(ca_path))
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=HOST)
    shown = writer.get_extra_info("peercert")
    writer.close()
    return int(shown["serialNumber"], 16)


@pytest.mark.skipif(shutil.which("redis-cli") is None, reason="the embedded build speaks no TLS")
async def test_it_serves_over_tls_alone_and_takes_a_new_certificate_without_a_restart(tmp_path: Path) -> None:
    tls, port = tmp_path / "tls", free_port()
    (tmp_path / "data").mkdir()
    place = [f"--folder={tls}", "--domain=demo.stratos", f"--dns-name=redis={HOST}", "--dns-name=redis=localhost"]
    assert CliRunner().invoke(app, ["certificates", "issue", *place]).exit_code == 0
    found = checked(VALUES)
    (server,) = one(found, "Deployment", HOST)["spec"]["template"]["spec"]["containers"]
    config = one(found, "ConfigMap", HOST)["data"]["redis.conf"]

    moved = {
        "/tmp/": f"{tmp_path}/own-", "/etc/stratos/tls": f"{tls}/redis", "/etc/redis-server": str(tmp_path),
        "dir /data": f"dir {tmp_path}/data", "6379": str(port), "3600": "0.2", "redis-cli": f"redis-cli -p {port}",
    }  # fmt: skip

    def here(text: str) -> str:
        for path, own in moved.items():
            text = text.replace(path, own)
        return text

    (tmp_path / "redis.conf").write_text(here(config))
    env = os.environ | {"REDIS_PASSWORD": "secret", "REDISCLI_AUTH": "secret"}
    log = (tmp_path / "log").open("wb")
    command = [*server["command"][:2], here(server["command"][2])]
    process = subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)  # noqa: ASYNC220
    try:
        probe = here(server["readinessProbe"]["exec"]["command"][2])

        async def is_ready() -> bool:
            asked = await asyncio.create_subprocess_shell(probe, env=env)
            return await asked.wait() == 0

        await eventually(is_ready, "the probe passes")
        url = f"rediss://:secret@localhost:{port}/0?ssl_ca_certs={tls}/redis/ca.crt"
        async with open_redis(url, timeout_s=10) as client:
            assert await client.ping()
        first = await serial_of(port, tls / "redis" / "ca.crt")
        renewed = CliRunner().invoke(app, ["certificates", "renew", "--all", *place])
        assert renewed.exit_code == 0, renewed.output

        async def is_new() -> bool:
            return await serial_of(port, tls / "redis" / "ca.crt") != first

        await eventually(is_new, "the new certificate")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"PING\r\n")
        with suppress(ConnectionResetError):
            assert await reader.read(100) == b"", "not without TLS"
        writer.close()
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        log.close()
