"""Adapters from the command line: checked here, copied into the object store, registered.

A folder is stored under its content's digest, so a new version never overwrites the files of one that runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from stratos.cli.data.platform_facts import PlatformFacts
from stratos.common.errors import BadRequest, InvalidAdapter, NotFound
from stratos.common.tls.identity import PeerRole
from stratos.common.tls.settings import TlsConfig
from stratos.core.adapter import Adapter, AdapterVersion
from stratos.core.files.adapter_config import CONFIG_NAME
from stratos.core.files.adapter_files import WEIGHTS_NAME, read_adapter_files
from stratos.core.files.model_files import read_model_files
from stratos.pki.local import dialer_of, tls_config
from stratos.rpc.clients.registry import RegistryClient
from stratos.store.object_store import ObjectStore
from stratos.store.settings import ObjectStoreConfig
from stratos.store.urls import opened_store

SHIPPED_FOLDER = "adapters"


@dataclass(frozen=True, slots=True)
class RegistryAddress:
    """Where a registry answers, and the administrator's certificate; ``None`` for plain text."""

    address: str
    tls: TlsConfig | None = None

    @classmethod
    def local(cls, address: str, tls_folder: str) -> Self:
        """Addresses of a platform of this machine; ``tls_folder`` is empty where it speaks plain text."""
        return cls(address, tls_config(Path(tls_folder), PeerRole.ADMIN) if tls_folder else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterTarget:
    """Where an adapter goes: the registry, the object store, and the model that it is for."""

    registry: RegistryAddress
    object_store_url: str = ""
    s3_endpoint_url: str = ""
    model_path: str = ""

    @classmethod
    def of(cls, facts: PlatformFacts) -> Self:
        """Return the addresses of a platform of this machine."""
        return cls(
            registry=RegistryAddress.local(facts.registry_address, facts.tls_folder),
            object_store_url=facts.object_store_url,
            s3_endpoint_url=facts.s3_endpoint_url,
            model_path=facts.model_path,
        )


async def register_adapter(target: AdapterTarget, *, name: str, path: Path, tenant: str) -> Adapter:
    """Upload one adapter and register it for the target's model.

    Raises:
        InvalidAdapter: what is wrong with the folder; nothing was stored.
    """
    base = await asyncio.to_thread(read_model_files, Path(target.model_path))
    config = ObjectStoreConfig(url=target.object_store_url, s3_endpoint_url=target.s3_endpoint_url)
    async with opened_store(config) as store:
        return await _publish(store, target.registry, name=name, path=path, tenant=tenant, base=base.digest)


async def list_adapters(target: AdapterTarget, *, tenant: str) -> tuple[Adapter, ...]:
    """The adapters a tenant may use."""
    async with _registry(target.registry) as registry:
        return await registry.list(tenant)


async def roll_back_adapter(target: AdapterTarget, *, name: str, tenant: str, to: str = "") -> Adapter:
    """Let a name stand for a version that it stood for before, once its files were checked again.

    Args:
        target: where the registry is.
        name: of the adapter.
        tenant: its owner; "" for one of all tenants.
        to: first digits of the version's digest; empty takes the last one, unless the name went back already.

    Raises:
        NotFound: the owner has no such adapter, or it has no such version.
        BadRequest: ``to`` is needed, or several versions begin with it.
        InvalidAdapter: the files have gone, or are others by now; the name stays.
    """
    async with _registry(target.registry) as registry:
        known = next((a for a in await registry.list(tenant) if (a.tenant, a.name) == (tenant, name)), None)
        if known is None:
            raise NotFound(f"there is no adapter {name!r} of this owner")
        version = _version_of(known, to) if to else _version_before(known)
        if version == known.version:
            return known
        made = await registry.register(
            tenant=tenant,
            name=name,
            base_model_digest=version.base_model_digest,
            uri=version.uri,
            digest=version.digest,
        )
    if made.digest != version.digest:
        raise InvalidAdapter(f"the registry, of an older version, has registered what is there now: {made.digest}")
    return made


def _version_before(known: Adapter) -> AdapterVersion:
    """The version that a name goes back to when none is named; a command that is sent again goes back no further."""
    if known.is_rolled_back:
        text = f"{known.name!r} went back already, to {known.digest[:12]}: name a version by --to"
        raise BadRequest(f"{text}; versions before: {_shown(known.former)}", param="to")
    if not known.former:
        raise NotFound(f"{known.name!r} never stood for another version")
    version = known.former[0]
    if version.base_model_digest != known.base_model_digest:
        text = f"the version {version.digest[:12]} is for another base model, {version.base_model_digest[:12]}"
        raise BadRequest(f"{text}: name it by --to where that one is served", param="to")
    return version


def _version_of(known: Adapter, digits: str) -> AdapterVersion:
    """The version, the present one included, whose digest begins with some digits."""
    found = [version for version in (known.version, *known.former) if version.digest.startswith(digits)]
    if not found:
        text = f"{known.name!r} never stood for a version {digits[:64]}"
        raise NotFound(f"{text}; versions before: {_shown(known.former)}")
    if len({version.digest for version in found}) > 1:
        raise BadRequest(f"several versions of {known.name!r} begin with {digits}", param="to")
    return found[0]


def _shown(versions: Sequence[AdapterVersion]) -> str:
    return ", ".join(version.digest[:12] for version in versions) or "none"


async def delete_adapter(target: AdapterTarget, *, name: str, tenant: str) -> None:
    """Take a name away."""
    async with _registry(target.registry) as registry:
        await registry.delete(tenant, name)


async def publish_shipped_adapters(
    model_path: Path, *, handed_digest: str, store_url: str, s3_endpoint_url: str, registry: RegistryAddress
) -> tuple[str, ...]:
    """Offer the adapters that ship with the base model to every tenant; returns their names.

    A name that an operator has rolled back stays where it is.
    """
    folders = sorted(p.parent for p in (model_path.parent / SHIPPED_FOLDER).glob(f"*/{CONFIG_NAME}"))
    if not folders:
        return ()
    base = await asyncio.to_thread(read_model_files, model_path, handed_digest)
    async with _registry(registry) as client:
        found = [adapter for adapter in await client.list("") if adapter.is_rolled_back]
    kept = {adapter.name for adapter in found if adapter.base_model_digest == base.digest}
    async with opened_store(ObjectStoreConfig(url=store_url, s3_endpoint_url=s3_endpoint_url)) as store:
        for folder in (folder for folder in folders if folder.name not in kept):
            await _publish(store, registry, name=folder.name, path=folder, tenant="", base=base.digest)
    return tuple(folder.name for folder in folders)


async def _publish(
    store: ObjectStore, registry: RegistryAddress, *, name: str, path: Path, tenant: str, base: str
) -> Adapter:
    files = await asyncio.to_thread(read_adapter_files, path)
    uri = f"{SHIPPED_FOLDER}/{name}-{files.digest[:12]}"
    for file_name in (CONFIG_NAME, WEIGHTS_NAME):
        await store.put(f"{uri}/{file_name}", path / file_name)
    async with _registry(registry) as client:
        return await client.register(tenant=tenant, name=name, base_model_digest=base, uri=uri)


@asynccontextmanager
async def _registry(registry: RegistryAddress) -> AsyncIterator[RegistryClient]:
    client = RegistryClient(registry.address, timeout_s=10.0, dialer=dialer_of(registry.tls))
    try:
        yield client
    finally:
        await client.close()
