"""Which addresses of a name stay, over answers, empty answers and connections."""

from __future__ import annotations

from stratos.rpc.clients.known_addresses import FORGET_AFTER_S, KnownAddresses


class Peers(set[str]):
    """Addresses with an open connection."""

    def has(self, address: str) -> bool:
        return address in self


def test_an_address_that_is_no_longer_named_stays_as_long_as_it_is_connected() -> None:
    known, peers = KnownAddresses(), Peers({"a", "b"})
    known.on_found(["a", "b"], peers.has)
    known.on_found(["b", "c"], peers.has)
    assert known.now == {"a", "b", "c"}
    peers.discard("a")
    known.on_found(["b", "c"], peers.has)
    assert known.now == {"b", "c"}


def test_an_empty_answer_takes_nothing_away_until_the_peers_themselves_are_gone_for_long() -> None:
    known, peers = KnownAddresses(), Peers({"a", "b"})
    known.on_found(["a", "b"], peers.has)
    known.on_nothing(peers.has, 0.0)
    peers.discard("a")
    known.on_nothing(peers.has, 1000.0)  # the first empty answer since it went
    assert known.now == {"a", "b"}
    known.on_nothing(peers.has, 1000.0 + FORGET_AFTER_S - 1)
    assert known.now == {"a", "b"}
    known.on_nothing(peers.has, 1000.0 + FORGET_AFTER_S)
    assert known.now == {"b"}


def test_a_peer_that_comes_back_during_an_outage_starts_its_time_over() -> None:
    known, peers = KnownAddresses(), Peers()
    known.on_found(["a"], peers.has)
    known.on_nothing(peers.has, 0.0)
    peers.add("a")
    known.on_nothing(peers.has, FORGET_AFTER_S)
    peers.discard("a")
    known.on_nothing(peers.has, FORGET_AFTER_S + 1)
    assert known.now == {"a"}
    known.on_found(["a"], peers.has)
    known.on_nothing(peers.has, 10 * FORGET_AFTER_S)
    assert known.now == {"a"}
