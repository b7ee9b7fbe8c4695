"""Sealing, wrapping and sub-keys: what opens where, and what does not."""

from __future__ import annotations

import base64
import secrets
from dataclasses import replace

import pytest

from stratos.common.errors import BadRequest
from stratos.store.data_keys import (
    BrokenSeal,
    PlatformKeys,
    Purpose,
    parse_platform_key,
    seal,
    seal_same,
    sub_key,
    unseal,
)

OLD, NEW = bytes(range(32)), bytes(range(1, 33))
KEYS = PlatformKeys(current=OLD)
SUB_KEYS = {
    Purpose.RESPONSE_CACHE: "b71252b6",
    Purpose.STORED_RESPONSES: "b84714e8",
    Purpose.STREAM_RECORDS: "c8ebeeed",
    Purpose.FILES: "5d7035ec",
    Purpose.KV_ON_DISK: "3dcd1b21",
    Purpose.CONTINUATIONS: "c913003d",
    Purpose.PREFIX_HASHES: "effd569c",
}


def test_what_is_sealed_opens_with_its_key_at_its_place_alone() -> None:
    sealed = seal(OLD, b"text of a tenant", b"here")
    assert unseal(OLD, sealed, b"here") == b"text of a tenant"
    assert b"text" not in sealed
    assert seal(OLD, b"text of a tenant", b"here") != sealed, "equal texts do not show as equal"
    altered = bytes([sealed[0] ^ 1]) + sealed[1:]
    for key, found, place in (
        (NEW, sealed, b"here"), (OLD, sealed, b"there"), (OLD, altered, b"here"), (OLD, sealed[:-1], b"here"),
        (OLD, sealed[:20], b"here"), (OLD, b"", b"here"),
    ):  # fmt: skip
        with pytest.raises(BrokenSeal):
            unseal(key, found, place)


def test_a_data_key_opens_under_its_platform_key_for_its_tenant_alone() -> None:
    record = KEYS.make("tn_1")
    data_key = KEYS.unwrap(record)
    assert len(data_key) == 32
    assert data_key not in record.wrapped
    rotated = PlatformKeys(current=NEW, current_id="2", older={"1": OLD})
    assert rotated.unwrap(record) == data_key
    again = rotated.wrap("tn_1", data_key)
    assert (again.platform_key_id, rotated.unwrap(again)) == ("2", data_key)
    for keys, found in (
        (KEYS, again), (PlatformKeys(current=NEW), record), (KEYS, replace(record, tenant_id="tn_2")),
        (PlatformKeys(current=OLD, current_id="2"), record),
    ):  # fmt: skip
        with pytest.raises(BrokenSeal):
            keys.unwrap(found)


def test_the_same_text_may_be_sealed_to_the_same_bytes() -> None:
    sealed = seal_same(OLD, b"text", b"place")
    assert sealed == seal_same(OLD, b"text", b"place")
    assert unseal(OLD, sealed, b"place") == b"text"
    others = [seal_same(NEW, b"text", b"place"), seal_same(OLD, b"texts", b"place"), seal_same(OLD, b"text", b"places")]
    assert len({sealed[:12], *(other[:12] for other in others)}) == 4, "a nonce serves one text"
    with pytest.raises(BrokenSeal):
        unseal(OLD, sealed, b"places")


def test_purposes_share_no_key_and_their_keys_never_change() -> None:
    found = {purpose: sub_key(OLD, purpose) for purpose in Purpose}
    assert len({OLD, *found.values()}) == len(Purpose) + 1
    assert {purpose: key.hex()[:8] for purpose, key in found.items()} == SUB_KEYS, "what is sealed must go on opening"


@pytest.mark.parametrize("text", ["", "00", "zz" * 32, "00" * 31, "00" * 33, base64.b64encode(bytes(16)).decode()])
def test_a_platform_key_is_32_bytes(text: str) -> None:
    with pytest.raises(BadRequest) as found:
        parse_platform_key(text)
    assert not text or text not in str(found.value)


def test_a_platform_key_comes_in_two_forms() -> None:
    key = secrets.token_bytes(32)
    assert parse_platform_key(key.hex() + "\n") == parse_platform_key(base64.b64encode(key).decode()) == key


def test_nothing_of_them_is_shown() -> None:
    record = KEYS.make("tn_1")
    shown = f"{KEYS!r} {record!r}"
    assert OLD.hex() not in shown
    assert repr(OLD) not in shown
    assert repr(record.wrapped) not in shown
