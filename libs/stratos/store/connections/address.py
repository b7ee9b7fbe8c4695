"""Address, names and TLS of a Redis, parsed from its URL.

    redis://USER:PASSWORD@HOST:PORT/DB
    rediss://...                                      TLS; the certificate and its name are checked
    rediss://...?ssl_ca_certs=/path/ca.crt            against these authorities in place of the system's
    redis+sentinel://USER:PASSWORD@HOST:PORT,HOST:PORT/SERVICE/DB
    rediss+sentinel://...                             TLS to the sentinels and to the servers
    ...?sentinel_username=USER&sentinel_password=PASSWORD

User and password are percent-encoded.  Other parameters are redis-py's own.  One server, or one that Sentinel names,
holds all records; Redis Cluster does not.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from redis.asyncio.connection import SSLConnection, parse_url

from stratos.common.errors import BadRequest

SENTINEL_PORT = 26379
_SENTINEL = "+sentinel"
_TLS_OPTIONS = "ssl_"


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisAddress:
    """Where the server is, or who knows it."""

    options: dict[str, Any] = field(repr=False)
    """Options of each connection, as redis-py takes them."""
    sentinels: tuple[tuple[str, int], ...] = ()
    """Host and port each; none: the options name the server."""
    service: str = ""
    """Name of its master at the sentinels."""
    sentinel_options: dict[str, Any] = field(default_factory=dict, repr=False)


def cluster_refused() -> BadRequest:
    """One server, or those that Sentinel keeps, hold all records; a cluster spreads them."""
    return BadRequest(
        "Redis Cluster is not supported: use one server, with replicas and Sentinel if need be", param="redis"
    )


def parse_redis_url(url: str) -> RedisAddress:
    """Parse a Redis URL.

    Raises:
        BadRequest: it is none that can be used.
    """
    try:
        scheme = urlsplit(url).scheme
        if "cluster" in scheme:
            raise cluster_refused()
        return _parse_sentinels(url) if scheme.endswith(_SENTINEL) else RedisAddress(options=dict(parse_url(url)))
    except ValueError as error:
        raise BadRequest(f"the Redis URL is not usable: {error}", param="redis_url") from error


def _parse_sentinels(url: str) -> RedisAddress:
    parts = urlsplit(url)
    credentials, at, hosts = parts.netloc.rpartition("@")
    service, _, database = parts.path.strip("/").partition("/")
    if not service or not hosts:
        raise ValueError("name sentinels and service: redis+sentinel://HOST:PORT,HOST:PORT/SERVICE/DB")
    # Every other part is what it is for one server, whose name does not matter.
    plain = parts._replace(
        scheme=parts.scheme.removesuffix(_SENTINEL), netloc=f"{credentials}{at}sentinel", path=f"/{database or 0}"
    )
    options: dict[str, Any] = dict(parse_url(urlunsplit(plain)))
    has_tls = options.pop("connection_class", None) is SSLConnection
    own = {name: options.pop(f"sentinel_{name}", None) for name in ("username", "password")}
    del options["host"]
    shared = {name: value for name, value in options.items() if name.startswith(_TLS_OPTIONS)}
    return RedisAddress(
        options={**options, "ssl": has_tls},
        sentinels=tuple(_host_and_port(host) for host in hosts.split(",")),
        service=service,
        sentinel_options={**shared, **{name: value for name, value in own.items() if value}, "ssl": has_tls},
    )


def _host_and_port(text: str) -> tuple[str, int]:
    parts = urlsplit(f"//{text}")
    if not parts.hostname:
        raise ValueError(f"{text!r} is not host:port")
    return parts.hostname, parts.port or SENTINEL_PORT
