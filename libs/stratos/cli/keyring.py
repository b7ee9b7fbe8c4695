"""API keys from the command line: the platform's own key, ``stratos keys`` and ``stratos tenants``."""

from __future__ import annotations

import dataclasses
import getpass
import os
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from stratos.cli.data.credentials import Credentials, load_credentials, load_platform_key, save_credentials
from stratos.cli.data.folder import DataDir
from stratos.cli.data.platform_facts import PlatformFacts
from stratos.cli.money.ledger_copies import has_segments
from stratos.cli.stores import StoreTarget, open_records, open_stores
from stratos.common.errors import BadRequest
from stratos.core.tenancy.plan import BUILT_IN_PLANS, LOCAL, STANDARD
from stratos.core.tenancy.roles import Role
from stratos.store.data_keys import PlatformKeys, parse_platform_key
from stratos.store.key_store import KeyStore, ListedKey
from stratos.store.keys import KeyTerms, Peppers, mint_key, parse_key
from stratos.store.records.adoption import init_store
from stratos.store.records.writer import RecordWriter
from stratos.store.tenancy.deletion import delete_tenant
from stratos.store.tenants import TenantRecord

OWN_TENANT = "default"
OWN_NAME = "stratos up"
_LOST = (
    "the object store has the ledger of a store that this Redis has lost: `stratos admin adopt-store` brings it back, "
    "from a backup where there is one"
)


async def ensure_api_key(redis_url: str, credentials: Credentials, data: DataDir) -> str:
    """The key that ``stratos up`` prints: made once per data directory, and again when it was revoked."""
    async with open_records(redis_url) as records:
        keys = _key_store(RecordWriter(records, actor="stratos up"), credentials, data)
        key = credentials.api_key or mint_key()
        if credentials.api_key and await keys.is_revoked(key):
            key = mint_key()
        await keys.create_key(OWN_TENANT, OWN_NAME, key=key, first_plan=LOCAL.name)
    if key != credentials.api_key:
        save_credentials(data, dataclasses.replace(credentials, api_key=key))
    return key


async def create_key(
    facts: PlatformFacts,
    data_dir: Path,
    *,
    tenant: str,
    name: str,
    plan: str | None = None,
    role: Role = Role.TENANT,
) -> str:
    """Make a key for a running platform."""
    async with _open(facts, data_dir) as keys:
        return await keys.create_key(tenant, name, plan=plan, terms=KeyTerms(role=role))


async def revoke_key(facts: PlatformFacts, data_dir: Path, *, key_id: str) -> None:
    """Revoke a key; gateways refuse it within their poll interval."""
    async with _open(facts, data_dir) as keys:
        await keys.revoke_key(key_id)


async def remove_tenant(facts: PlatformFacts, *, tenant: str) -> None:
    """Delete a tenant with its keys. Raises ``NotFound`` where there is none."""
    async with open_records(facts.redis_url) as records:
        await delete_tenant(RecordWriter(records, actor=_person()), tenant)


async def list_keys(facts: PlatformFacts, data_dir: Path) -> list[ListedKey]:
    """All keys of a platform, by tenant and name."""
    async with _open(facts, data_dir) as keys:
        return await keys.list_keys()


async def list_tenants(facts: PlatformFacts, data_dir: Path) -> list[TenantRecord]:
    """All tenants of a platform, by name."""
    async with _open(facts, data_dir) as keys:
        return await keys.tenants.list()


async def set_plan(facts: PlatformFacts, data_dir: Path, *, tenant: str, plan: str) -> None:
    """Change the plan of a tenant's future requests."""
    async with _open(facts, data_dir) as keys:
        await keys.tenants.set_plan(tenant, plan)


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenKey:
    """A key that was made elsewhere, and whose it is."""

    text: str = field(repr=False)
    tenant: str
    name: str
    first_plan: str = STANDARD.name
    """Plan of a tenant that is new."""
    role: Role = Role.TENANT

    @property
    def key_id(self) -> str:
        """Part of the text that is no secret. Raises ``InvalidApiKey`` where it is no key."""
        return parse_key(self.text)


async def set_up_with_keys(
    target: StoreTarget, peppers: Peppers | None, given: Sequence[GivenKey]
) -> tuple[str, Collection[str]]:
    """Set up the store of an installation, with its first keys. Doing it again changes nothing.

    Both go over one connection: gateways follow the store as soon as it is marked, and a name that has to be looked up
    in between could keep the keys from them. The keys are written moments after it.

    Returns:
        The store's id, and the ids of given keys that were revoked since: they stay so, and keep no other key out.

    Raises:
        BadRequest: a new store would have no such plan; or this Redis has lost one, which a person brings back.
    """
    async with open_stores(target) as (records, manifests):
        if await records.marker() is None:
            _check_first_plans(given)
            if await has_segments(target):
                raise BadRequest(_LOST)
        store_id = await init_store(records, manifests)
        keys = None if peppers is None else KeyStore(RecordWriter(records, actor=_person()), peppers)
        revoked = [] if keys is None else [key.key_id for key in given if await keys.is_revoked(key.text)]
        if keys is not None:
            await _register(keys, [key for key in given if key.key_id not in revoked])
    return store_id, revoked


def _check_first_plans(given: Sequence[GivenKey]) -> None:
    """Refuse plans that no new store has, before gateways follow it without the keys."""
    for key in given:
        if key.first_plan not in BUILT_IN_PLANS:
            names = ", ".join(sorted(BUILT_IN_PLANS))
            raise BadRequest(f"a new store has no plan {key.first_plan[:64]!r}; it has {names}", param="plan")


async def register_keys(redis_url: str, peppers: Peppers, given: Sequence[GivenKey], prefix: str = "") -> None:
    """Store keys that exist already, and tenants that are new, in the Redis of an installation."""
    async with open_records(redis_url, *([prefix] if prefix else [])) as records:
        await _register(KeyStore(RecordWriter(records, actor=_person()), peppers), given)


async def _register(keys: KeyStore, given: Sequence[GivenKey]) -> None:
    for key in given:
        terms = KeyTerms(role=key.role)
        await keys.create_key(key.tenant, key.name, key=key.text, first_plan=key.first_plan, terms=terms)


@asynccontextmanager
async def _open(facts: PlatformFacts, data_dir: Path) -> AsyncIterator[KeyStore]:
    data = DataDir(data_dir)
    async with open_records(facts.redis_url) as records:
        yield _key_store(RecordWriter(records, actor=_person()), load_credentials(data), data)


def _key_store(writer: RecordWriter, credentials: Credentials, data: DataDir) -> KeyStore:
    """Keys of a platform of this machine; the data keys of new tenants are wrapped before their keys are known."""
    platform = PlatformKeys(current=parse_platform_key(load_platform_key(data)))
    return KeyStore(writer, Peppers(current=credentials.pepper), platform=platform)


def _person() -> str:
    """Who runs this command, for the audit log; a pod's user may have no name."""
    try:
        return f"cli:{getpass.getuser()}"
    except (KeyError, OSError):
        return f"cli:uid-{os.getuid()}"
