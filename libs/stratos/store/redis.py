"""Connections to Redis that give up within a second, and its errors as ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ConnectionError,
    OutOfMemoryError,
    ReadOnlyError,
    TimeoutError,
)

from stratos.common.errors import BadRequest, DependencyDown

DEFAULT_TIMEOUT_S = 0.8
"""Callers promise an answer within one second."""


def open_redis(url: str, *, timeout_s: float = DEFAULT_TIMEOUT_S, max_connections: int = 32) -> Redis:
    """A client with decoded answers; nothing is contacted yet.

    One retry, at once, and only after a broken connection: a pool may hold connections from before a restart
    of the server.  A server that is silent is not asked twice.

    Raises:
        BadRequest: not a redis:// URL.
    """
    try:
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=max_connections,
            timeout=timeout_s,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            decode_responses=True,
            encoding_errors="replace",  # bytes that are no text spoil the one record that has them
            retry=Retry(NoBackoff(), 1, supported_errors=(ConnectionError,)),
        )
    except ValueError as error:
        raise BadRequest(f"the Redis URL is not usable: {error}", param="redis_url") from error
    return Redis.from_pool(pool)


@contextmanager
def translate_redis_errors() -> Iterator[None]:
    """Raise ``DependencyDown`` for every error that means "not now"; wrong commands stay what they are."""
    try:
        yield
    except AuthenticationError as error:
        raise DependencyDown("Redis refuses the user or password of redis_url") from error
    except (ConnectionError, TimeoutError, BusyLoadingError, OSError) as error:
        raise DependencyDown("Redis does not answer; it is restarted or looked after, try again shortly") from error
    except (ReadOnlyError, OutOfMemoryError) as error:
        raise DependencyDown(f"Redis takes no writes now ({type(error).__name__})") from error
