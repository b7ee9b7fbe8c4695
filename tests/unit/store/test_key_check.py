"""Keys whose tenants are remembered: never longer than what they were made of."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from stratos.common.errors import InvalidApiKey, PermissionDenied
from stratos.store.authentication import KeyCheck
from stratos.store.keys import Peppers, key_mac, mint_key, parse_key
from stratos.store.records.followed_snapshot import FollowedSnapshot
from stratos.store.records.record import Kind, Record, make_body, parse_record
from stratos.store.tenants import tenant_id

PEPPERS = Peppers(current="0123456789abcdef")
SALT = "ab" * 32


@dataclass
class FakeFollower:
    """A store that has news at the next look at it."""

    snapshot: FollowedSnapshot = field(default_factory=FollowedSnapshot)
    news: list[Record] = field(default_factory=list)
    check: KeyCheck | None = None
    other: str = ""
    refuses: bool = False
    now_s: float = 0.0

    def unix_s(self) -> float:
        return self.now_s

    async def catch_up(self) -> bool:
        for record in self.news:
            self.snapshot.merge(record)
        if self.check is not None:
            await self.check.authenticate(self.other)  # of another request, as this one waits
        return True


def tenant(name: str, version: int = 1, *, is_suspended: bool = False) -> Record:
    value = {"cache_salt": SALT, "plan": "standard", "suspended": is_suspended, "is_suspended": is_suspended}
    return parse_record(Kind.TENANT, name, f"{version} {make_body(value)}")


def key(text: str, name: str, version: int = 1, *, is_deleted: bool = False, **more: object) -> Record:
    value = {"tenant": name, "tenant_id": tenant_id(bytes.fromhex(SALT)), "name": "k", **more}
    value |= {"mac": key_mac(PEPPERS.current, text), "pepper_id": "1"}
    return parse_record(Kind.KEY, parse_key(text), f"{version} {make_body(value, is_deleted=is_deleted)}")


async def test_a_key_that_is_revoked_as_its_tenant_is_looked_for_is_not_remembered() -> None:
    text, other = mint_key(), mint_key()
    follower = FakeFollower(other=other)
    for record in (key(text, "acme"), key(other, "other"), tenant("other")):
        follower.snapshot.merge(record)
    follower.check = check = KeyCheck(follower, PEPPERS)  # type: ignore[arg-type]
    follower.news = [tenant("acme"), key(text, "acme", 2, is_deleted=True)]
    await check.authenticate(text)  # it began before
    with pytest.raises(InvalidApiKey):
        await check.authenticate(text)


async def test_a_remembered_key_ends_with_its_time_its_record_and_its_tenant() -> None:
    follower, text, brief = FakeFollower(), mint_key(), mint_key()
    for record in (key(text, "acme"), key(brief, "acme", expires_unix_s=100), tenant("acme")):
        follower.snapshot.merge(record)
    check = KeyCheck(follower, PEPPERS)  # type: ignore[arg-type]
    for one in (text, brief, text, brief):
        await check.authenticate(one)
    follower.now_s = 100.0
    with pytest.raises(InvalidApiKey, match="expired"):
        await check.authenticate(brief)
    follower.snapshot.merge(tenant("acme", 2, is_suspended=True))
    with pytest.raises(PermissionDenied):
        await check.authenticate(text)
    follower.snapshot.merge(tenant("acme", 3))
    await check.authenticate(text)
    follower.snapshot.merge(key(text, "acme", 2, is_deleted=True))
    with pytest.raises(InvalidApiKey):
        await check.authenticate(text)
