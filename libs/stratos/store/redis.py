"""Connections to Redis that give up within a second, and its errors as ours."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import MasterNotFoundError
from redis.backoff import NoBackoff
from redis.driver_info import DriverInfo
from redis.exceptions import (
    AskError,
    AuthenticationError,
    BusyLoadingError,
    ClusterCrossSlotError,
    ClusterDownError,
    ConnectionError,
    MasterDownError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
    TimeoutError,
)

from stratos.common.errors import DependencyDown
from stratos.store.connections.address import cluster_refused, parse_redis_url
from stratos.store.connections.packing import with_quick_packing
from stratos.store.connections.sentinel import open_master

FOREIGN_STORE = "FOREIGNSTORE"
"""In the error of a script that does not write into another store."""
FOREIGN = "this Redis was emptied, or holds another store"
NOT_NOW = ("MISCONF ", "NOREPLICAS ", "BUSY ")
"""In errors of a server whose disk is full, that lacks replicas, or that runs a long script."""
DEFAULT_TIMEOUT_S = 0.8
"""Callers promise an answer within one second."""
BROKEN = (ConnectionError, RuntimeError)
"""``RuntimeError`` is uvloop's for a write to a connection that was reset before."""
CLOSED = "the handler is closed"
"""In that one."""
_DRIVER = DriverInfo()
"""Read once: else each new connection looks for the client's version in the installation, on the event loop."""


def open_redis(url: str, *, timeout_s: float = DEFAULT_TIMEOUT_S, max_connections: int = 32) -> Redis:
    """A client with decoded answers, for any URL of ``connections``; nothing is contacted yet.

    One retry, at once, and only after a broken connection: a pool may hold connections from before a restart
    of the server, or from before another one took its place.  A server that is silent is not asked twice.

    Raises:
        BadRequest: not a URL that can be used.
    """
    address = parse_redis_url(url)
    options = {
        "max_connections": max_connections,
        "timeout": timeout_s,
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "decode_responses": True,
        "driver_info": _DRIVER,
        "encoding_errors": "replace",  # bytes that are no text spoil the one record that has them
        "retry": Retry(NoBackoff(), 1, supported_errors=BROKEN),  # type: ignore[arg-type] # any class of exceptions
        **address.options,
    }
    if address.sentinels:
        return open_master(
            address.sentinels, address.service, options=options, sentinel_options=address.sentinel_options
        )
    return Redis.from_pool(with_quick_packing(BlockingConnectionPool(**options)))


@contextmanager
def translate_redis_errors() -> Iterator[None]:
    """Raise ``DependencyDown`` for every error that means "not now"; wrong commands stay what they are.

    Raises:
        BadRequest: it is a Redis Cluster.
    """
    try:
        yield
    except MasterDownError as error:  # a kind of the next ones to the client, though any replica may say so
        raise DependencyDown("Redis is a replica that has lost its master; try again shortly") from error
    except (AskError, ClusterDownError, ClusterCrossSlotError) as error:
        raise cluster_refused() from error
    except AuthenticationError as error:
        raise DependencyDown("Redis refuses the user or password of redis_url") from error
    except MasterNotFoundError as error:
        raise DependencyDown("no Redis Sentinel names a master now; try again shortly") from error
    except (ConnectionError, TimeoutError, BusyLoadingError, OSError) as error:
        if (refused := _certificate_problem(error)) is not None:
            raise DependencyDown(f"the certificate of Redis is not accepted: {refused}") from error
        raise DependencyDown("Redis does not answer; it is restarted or looked after, try again shortly") from error
    except RuntimeError as error:
        if CLOSED in str(error):
            raise DependencyDown("a connection to Redis was cut; try again shortly") from error
        raise
    except (ReadOnlyError, OutOfMemoryError) as error:
        raise DependencyDown(f"Redis takes no writes now ({type(error).__name__})") from error
    except ResponseError as error:
        if FOREIGN_STORE in str(error):
            raise DependencyDown(FOREIGN) from error
        if found := [code for code in NOT_NOW if code in str(error)]:
            raise DependencyDown(f"Redis takes no writes now ({found[0].strip()})") from error
        raise


def _certificate_problem(error: BaseException | None) -> str | None:
    """Why a TLS handshake failed, if that is what is at the bottom of an error."""
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return error.verify_message
        error = error.__cause__ or error.__context__
    return None
