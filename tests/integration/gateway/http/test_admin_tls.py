"""The admin API over TLS, wherever the platform has it: with the certificate of mTLS, else with the API's."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from stratos.common.errors import DependencyDown
from stratos.common.tls.identity import PeerRole
from stratos.common.tls.settings import TlsConfig
from stratos.rpc.clients.admin import AdminClient
from tests.support.servers.certificates import CertificateFolder
from tests.support.servers.server_certificates import Authority
from tests.support.waiting import LIMIT_S
from tests.support.worlds.admin_world import AdminWorld, admin_world


async def tenants(world: AdminWorld, scheme: str, mesh: TlsConfig | None) -> list[str]:
    client = AdminClient(f"{scheme}://{world.service.admin_address}", world.keys["admin"], mesh)
    try:
        found = await asyncio.to_thread(client.call, "GET", "/tenants")
        return [tenant["name"] for tenant in found["data"]]
    finally:
        client.close()


async def test_tools_of_the_platform_check_its_name_and_need_no_certificate(redis_url: str, tmp_path: Path) -> None:
    mesh, other = CertificateFolder(tmp_path / "tls"), CertificateFolder(tmp_path / "other", "elsewhere")
    async with admin_world(redis_url, tmp_path, tls=mesh.config(PeerRole.GATEWAY)) as world:
        assert await tenants(world, "https", mesh.config(PeerRole.ADMIN))
        stranger = TlsConfig(
            certificate_path=Path("none"), key_path=Path("none"), ca_path=mesh.config(PeerRole.ADMIN).ca_path,
            domain="elsewhere",
        )  # fmt: skip
        for scheme, config in (("https", other.config(PeerRole.ADMIN)), ("https", stranger), ("http", None)):
            with pytest.raises(DependencyDown):
                await tenants(world, scheme, config)


async def test_without_mtls_it_has_the_certificate_of_the_api(redis_url: str, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    authority.issue()
    paths = {"certificate_path": authority.certificate_path, "key_path": authority.key_path}
    async with admin_world(redis_url, tmp_path, http_tls=paths) as world:
        url, headers = f"https://{world.service.admin_address}", {"authorization": f"Bearer {world.keys['admin']}"}
        async with httpx.AsyncClient(
            base_url=url, headers=headers, verify=authority.client_context(), timeout=LIMIT_S
        ) as http:
            assert (await http.get("/admin/v1/tenants")).status_code == 200


async def test_a_port_on_loopback_may_be_plain(redis_url: str, tmp_path: Path) -> None:
    mesh = CertificateFolder(tmp_path / "tls")
    admin = {"listen": "127.0.0.1:0", "plaintext": True}
    async with admin_world(redis_url, tmp_path, tls=mesh.config(PeerRole.GATEWAY), admin=admin) as world:
        assert await tenants(world, "http", None)
