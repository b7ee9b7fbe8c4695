"""May KV move between two workers?  Decided from what both report about themselves, never from versions; from addresses
only if the source reports no host.

Equal must be: model and adapter digest, KV dtype, rope variant, protocol version, the shape of one token's KV, and the
numerics id unless neither worker promises exact bits.  Block size, page layout and parallel degrees may differ; the
sender converts.
"""

from __future__ import annotations

from stratos.common.errors import IdentityMismatch
from stratos.core.kv import KvGeometry, KvIdentity
from stratos.kv_transfer.capabilities import UNKNOWN, Capabilities, LocalCapabilities
from stratos.kv_transfer.registry import is_choice_valid, reachable_transports


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
    if misfit := mine.misfit(theirs):
        here, there = getattr(mine, misfit), getattr(theirs, misfit)
        raise IdentityMismatch(f"KV cannot be handed over: {misfit} is {here!r} here and {there!r} there")
    for name in ("num_layers", "num_kv_heads", "head_dim"):
        if getattr(my_shape, name) != getattr(their_shape, name):
            raise IdentityMismatch(f"KV cannot be handed over: {name} differs")


def choose_transport(
    spoken: tuple[str, ...], offered: tuple[str, ...], mine: LocalCapabilities, theirs: Capabilities
) -> str:
    """The first offered transport that both speak and that joins them.

    Raises:
        IdentityMismatch: there is none.
    """
    found = reachable_transports(offered, spoken, mine, theirs)
    if not found:
        raise IdentityMismatch(
            f"no KV transport joins the two workers: here {', '.join(spoken)}, there {', '.join(offered)}"
        )
    return found[0]


def check_choice(
    transport: str, offered: tuple[str, ...], mine: LocalCapabilities, theirs: Capabilities, *, is_one_host: bool
) -> None:
    """Check that a source's choice was offered, and joins the two by what both report about themselves.

    Args:
        transport: the choice.
        offered: by this worker.
        mine: of this worker.
        theirs: of the source.
        is_one_host: the addresses of both have one host; counts only for a source that reports nothing of itself.

    Raises:
        IdentityMismatch: it does not: payloads would not arrive.
    """
    if transport not in offered:
        why = "which was not offered"
    elif is_choice_valid(transport, mine, theirs, is_one_host=is_one_host):
        return
    elif theirs == UNKNOWN:
        why = "and says nothing of its host and device, so it may not reach this worker"
    else:
        why = "which does not join the two workers"
    raise IdentityMismatch(f"the source chose the KV transport {transport!r}, {why}")


def is_one_host(address: str, other: str) -> bool:
    """Whether two addresses, ``host:port``, have one host."""
    return address.rpartition(":")[0] == other.rpartition(":")[0]
