"""Which routers exist: fixed addresses, and names that are resolved again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from stratos.common.clock import FakeClock
from stratos.rpc.clients.peer_addresses import InvalidAddress, PeerAddresses, split_address


@dataclass
class Names:
    """A name service that may be out of order."""

    records: dict[str, list[str]] = field(default_factory=dict)
    is_down: bool = False

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        if self.is_down or host not in self.records:
            raise OSError("no such name")
        return self.records[host]


async def test_a_name_stands_for_all_its_addresses_and_is_looked_up_again() -> None:
    names = Names({"router": ["10.0.0.1", "10.0.0.2"]})
    addresses = PeerAddresses(["router:7000", "127.0.0.1:7001", "[::1]:7002"], FakeClock(), names.resolve)
    assert await addresses.now() == {"10.0.0.1:7000", "10.0.0.2:7000", "127.0.0.1:7001", "[::1]:7002"}
    names.records["router"] = ["10.0.0.2", "10.0.0.3"]
    assert {"10.0.0.2:7000", "10.0.0.3:7000"} <= await addresses.now()
    assert "10.0.0.1:7000" not in await addresses.now()


async def test_an_outage_of_the_name_service_takes_no_router_away() -> None:
    names = Names({"router": ["10.0.0.1"]})
    addresses = PeerAddresses(["router:7000"], FakeClock(), names.resolve)
    assert await addresses.now() == {"10.0.0.1:7000"}
    names.is_down = True
    assert await addresses.now() == {"10.0.0.1:7000"}


async def test_a_name_that_was_never_known_has_no_addresses_yet() -> None:
    names = Names(is_down=True)
    addresses = PeerAddresses(["router:7000"], FakeClock(), names.resolve)
    assert await addresses.now() == frozenset()
    names.is_down, names.records = False, {"router": ["10.0.0.9"]}
    assert await addresses.now() == {"10.0.0.9:7000"}


@pytest.mark.parametrize("text", ["", "host", "host:", ":1", "host:0", "host:65536", "host:x", "host:\u0661"])
def test_what_is_not_host_and_port_is_refused(text: str) -> None:
    with pytest.raises(InvalidAddress):
        split_address(text)
