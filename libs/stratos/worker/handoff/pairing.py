"""May KV move between two workers?  Decided from what both say about themselves, never from versions or hosts.

Equal must be: model and adapter digest, KV dtype, rope variant, numerics id, protocol version, and the shape of
one token's KV.  Block size, page layout and parallel degrees may differ; the sender converts.
"""

from __future__ import annotations

import dataclasses

from stratos.common.errors import IdentityMismatch
from stratos.core.kv import KvGeometry, KvIdentity
from stratos.kv.registry import is_within_host


def check_pairing(mine: KvIdentity, theirs: KvIdentity, my_shape: KvGeometry, their_shape: KvGeometry) -> None:
    """Refuse a hand-off between workers whose KV does not mean the same.

    Args:
        mine: identity here, adapter of the request filled in.
        theirs: identity the peer sent.
        my_shape: geometry here.
        their_shape: geometry the peer sent.

    Raises:
        IdentityMismatch: names the first field that differs.
    """
    for field in dataclasses.fields(KvIdentity):
        here, there = getattr(mine, field.name), getattr(theirs, field.name)
        if here != there:
            raise IdentityMismatch(f"KV cannot be handed over: {field.name} is {here!r} here and {there!r} there")
    for name in ("num_layers", "num_kv_heads", "head_dim"):
        if getattr(my_shape, name) != getattr(their_shape, name):
            raise IdentityMismatch(f"KV cannot be handed over: {name} differs")


def choose_transport(mine: tuple[str, ...], offered: tuple[str, ...], my_address: str, their_address: str) -> str:
    """The first offered transport that both speak; ``shm`` only within one host.

    Raises:
        IdentityMismatch: there is none.
    """
    is_same_host = _host(my_address) == _host(their_address)
    for transport in offered:
        if transport in mine and (is_same_host or not is_within_host(transport)):
            return transport
    raise IdentityMismatch(f"no common KV transport: here {', '.join(mine)}, there {', '.join(offered)}")


def _host(address: str) -> str:
    return address.rpartition(":")[0]
