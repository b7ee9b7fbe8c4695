"""Keys of a release, by the admin API of its gateways."""

from __future__ import annotations

import asyncio
import base64
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any

from stratos.cli.chaos.kube.api import Object
from stratos.cli.chaos.kube.channels import forwarded
from stratos.cli.chaos.kube.release import Release, component, port_of
from stratos.common.errors import BadRequest, NotFound
from stratos.common.tls.settings import TlsConfig
from stratos.pki.local import role_config
from stratos.pki.stores import CA
from stratos.rpc.clients.admin import AdminClient

ADMIN_KEY = "admin-key"


class ReleaseAdmin:
    """Calls any gateway's admin port.

    Args:
        url: of a forwarded port.
        key: of the role admin.
        mesh: certificates of the release, where it has mTLS.
    """

    def __init__(self, url: str, key: str, mesh: TlsConfig | None) -> None:
        self._url, self._key, self._mesh = url, key, mesh

    async def create_key(self, tenant: str) -> str:
        """Key of a new tenant with as much as a local platform gives."""
        made = await self._call("POST", "/keys", {"tenant": tenant, "name": "chaos", "plan": "local"})
        return str(made["key"])

    async def remove_tenant(self, tenant: str) -> None:
        """Delete it. Raises ``NotFound`` where there is none."""
        await self._call("DELETE", f"/tenants/{tenant}")

    async def _call(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        def call() -> dict[str, Any]:
            with closing(AdminClient(self._url, self._key, self._mesh)) as client:
                return client.call(method, path, body)

        return await asyncio.to_thread(call)


@asynccontextmanager
async def opened_admin(release: Release) -> AsyncIterator[ReleaseAdmin]:
    """The admin API through the API server.

    Raises:
        BadRequest: the release has no such port.
        NotFound: no key is known.
    """
    gateway = await release.pod("gateway-0")
    try:
        port_of(gateway, "admin")
    except BadRequest:
        raise BadRequest(
            "keys of this run come from the admin API, which this release has not: set gateway.admin.enabled=true"
        ) from None
    key = release.place.admin_key or await _admin_key(release)
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stratos-chaos-")))
        mesh = await _mesh(release, gateway, folder)
        address = await stack.enter_async_context(forwarded(release.api, lambda: release.next_gateway("admin")))
        yield ReleaseAdmin(f"{'https' if mesh else 'http'}://{address}", key, mesh)


async def _admin_key(release: Release) -> str:
    for secret in await release.api.items(f"{release.path}/secrets", release.selector):
        if value := (secret.get("data") or {}).get(ADMIN_KEY):
            return base64.b64decode(value).decode()
    raise NotFound("no Secret of the release has an admin-key: give --admin-key or STRATOS_ADMIN_KEY")


async def _mesh(release: Release, gateway: Object, folder: Path) -> TlsConfig | None:
    """The authorities of a gateway's certificate, which is all that a client of this port needs."""
    volumes = {volume["name"]: volume for volume in gateway["spec"].get("volumes") or ()}
    if "tls" not in volumes:
        return None
    secret = await release.api.call("GET", f"{release.path}/secrets/{volumes['tls']['secret']['secretName']}")
    (folder / CA).write_bytes(base64.b64decode(secret["data"][CA]))
    (container,) = (one for one in gateway["spec"]["containers"] if one["name"] == component(gateway))
    variables = {one["name"]: one.get("value", "") for one in container.get("env") or ()}
    return role_config(folder, variables["STRATOS_GATEWAY_TLS__DOMAIN"])
