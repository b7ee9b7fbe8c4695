"""What Redis URLs say."""

from __future__ import annotations

import pytest
from redis.asyncio.connection import SSLConnection

from stratos.common.errors import BadRequest
from stratos.store.connections.address import parse_redis_url


def test_one_server() -> None:
    address = parse_redis_url("rediss://me:p%2Fw%3A@h:7000/3?ssl_ca_certs=/ca.crt")
    assert address.sentinels == ()
    assert address.options == {
        "connection_class": SSLConnection,
        "host": "h",
        "port": 7000,
        "db": 3,
        "username": "me",
        "password": "p/w:",
        "ssl_ca_certs": "/ca.crt",
    }
    assert "p/w:" not in repr(address)


def test_sentinels_with_credentials_and_tls_of_their_own() -> None:
    url = "rediss+sentinel://me:p%40w@a:1,[::1]:2,c/main/4?ssl_ca_certs=/ca.crt&sentinel_password=s%25w"
    address = parse_redis_url(url)
    assert (address.sentinels, address.service) == ((("a", 1), ("::1", 2), ("c", 26379)), "main")
    shared = {"ssl": True, "ssl_ca_certs": "/ca.crt"}
    assert address.options == {"db": 4, "username": "me", "password": "p@w", **shared}
    assert address.sentinel_options == {"password": "s%w", **shared}
    assert "p@w" not in repr(address)


def test_plain_sentinels_without_anything() -> None:
    address = parse_redis_url("redis+sentinel://a/main")
    assert (address.options, address.sentinel_options) == ({"db": 0, "ssl": False}, {"ssl": False})


@pytest.mark.parametrize(
    "url",
    ["", "http://h", "redis+sentinel://a", "redis+sentinel:///main", "redis+sentinel://a:x/main",
     "redis+sentinel://a:1,/main", "redis+sentinel://a/main/0?socket_timeout=x"],
)  # fmt: skip
def test_what_cannot_be_used_is_refused(url: str) -> None:
    with pytest.raises(BadRequest, match="Redis URL"):
        parse_redis_url(url)


@pytest.mark.parametrize("url", ["redis+cluster://h:1", "rediss+cluster://h:1,i:2/0"])
def test_a_cluster_is_refused_by_name(url: str) -> None:
    with pytest.raises(BadRequest, match="Redis Cluster is not supported"):
        parse_redis_url(url)
