"""Which transports join which workers: by facts of both ends; what is unknown fits nothing."""

import dataclasses
from pathlib import Path

import pytest

from stratos.core.device.facts import DeviceFacts
from stratos.kv_transfer.capabilities import (
    Capabilities,
    LocalCapabilities,
    Reach,
    can_reach,
    find_capabilities,
    may_be_chosen,
)
from stratos.kv_transfer.registry import TRANSPORTS, reachable_transports

HERE = Capabilities(host="boot-1", shared_memory="17.2", device="GPU-a", fabric="f.1")
MINE = LocalCapabilities(facts=HERE, peers=frozenset({"GPU-b"}))
ALL = TRANSPORTS[::-1]


def reached(theirs: Capabilities, mine: LocalCapabilities = MINE) -> set[str]:
    return set(reachable_transports(ALL, ALL, mine, theirs))


@pytest.mark.parametrize(
    ("theirs", "beside_network"),
    [
        (HERE, {"shm", "cuda_ipc"}),
        (dataclasses.replace(HERE, device="GPU-b"), {"shm", "nccl", "cuda_ipc"}),
        (dataclasses.replace(HERE, device="GPU-c"), {"shm", "nccl"}),
        (dataclasses.replace(HERE, device=""), {"shm"}),
        (dataclasses.replace(HERE, shared_memory="17.3"), set()),
        (dataclasses.replace(HERE, host="boot-2", device="GPU-z"), {"nccl"}),
        (Capabilities(), set()),
    ],
)
def test_what_both_say_decides(theirs: Capabilities, beside_network: set[str]) -> None:
    assert reached(theirs) == {"tls", "gloo"} | beside_network
    if theirs.device != "GPU-b":  # there the other end does not list this one as a peer
        assert reached(HERE, LocalCapabilities(facts=theirs)) == reached(theirs)


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(Capabilities)])
def test_two_unknown_facts_are_not_equal_ones(field: str) -> None:
    less = dataclasses.replace(HERE, **{field: ""})
    for reach in (Reach.SHARED_MEMORY, Reach.DEVICE_MEMORY):
        needs = {
            Reach.SHARED_MEMORY: {"host", "shared_memory"},
            Reach.DEVICE_MEMORY: {"host", "shared_memory", "device"},
        }
        assert can_reach(reach, LocalCapabilities(facts=less), less) == (field not in needs[reach])
    assert not can_reach(Reach.PROCESS, MINE, HERE)


def test_device_memory_needs_one_gpu_or_a_neighbour() -> None:
    for device, is_near in (("GPU-a", True), ("GPU-b", True), ("GPU-c", False), ("", False)):
        assert can_reach(Reach.DEVICE_MEMORY, MINE, dataclasses.replace(HERE, device=device)) == is_near
    assert not can_reach(Reach.DEVICE_MEMORY, LocalCapabilities(), Capabilities())


def test_the_receiver_leaves_to_the_source_which_memory_its_gpu_reaches() -> None:
    alone = LocalCapabilities(facts=HERE)  # it sees its own GPU only; the source sees both
    for theirs, is_valid in (
        (dataclasses.replace(HERE, device="GPU-b"), True),
        (dataclasses.replace(HERE, device=""), False),
        (dataclasses.replace(HERE, device="GPU-b", shared_memory="17.3"), False),
        (dataclasses.replace(HERE, device="GPU-b", host="boot-2"), False),
        (Capabilities(), False),
    ):
        assert may_be_chosen(Reach.DEVICE_MEMORY, alone, theirs, is_one_host=True) == is_valid
    no_device = LocalCapabilities(facts=dataclasses.replace(HERE, device=""))
    assert not may_be_chosen(Reach.DEVICE_MEMORY, no_device, HERE, is_one_host=True)


def test_a_source_that_says_nothing_shares_memory_by_its_address() -> None:
    for is_one_host in (True, False):
        assert may_be_chosen(Reach.SHARED_MEMORY, MINE, Capabilities(), is_one_host=is_one_host) == is_one_host
        other = dataclasses.replace(HERE, shared_memory="17.3")
        assert not may_be_chosen(Reach.SHARED_MEMORY, MINE, other, is_one_host=is_one_host)
        assert may_be_chosen(Reach.NETWORK, MINE, Capabilities(), is_one_host=is_one_host)


def test_the_order_is_the_receivers_unless_a_fabric_joins_both() -> None:
    other = dataclasses.replace(HERE, host="boot-2", device="GPU-z")
    beside = dataclasses.replace(HERE, fabric="")
    assert reachable_transports(("gloo", "shm", "tls"), ("tls", "gloo", "shm"), MINE, beside) == ["gloo", "shm", "tls"]
    assert reachable_transports(("gloo", "shm", "tls"), ("tls", "gloo", "shm"), MINE, HERE) == ["shm", "gloo", "tls"]
    assert reachable_transports(("tls", "nccl"), ALL, MINE, dataclasses.replace(other, fabric="f.2")) == ["tls", "nccl"]
    assert reachable_transports(("tls", "nccl"), ALL, MINE, other) == ["nccl", "tls"]
    assert reachable_transports(("of-another-build", "gloo"), ("of-another-build", "gloo"), MINE, HERE) == ["gloo"]


def test_a_process_finds_its_own(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    device = DeviceFacts(uuid="GPU-a", fabric="f.1", peers=("GPU-b",))
    first, again = (find_capabilities(tmp_path / "one", device) for _ in range(2))
    assert first == again
    assert (first.facts.device, first.facts.fabric, first.peers) == ("GPU-a", "f.1", {"GPU-b"})
    assert can_reach(Reach.DEVICE_MEMORY, first, again.facts)
    elsewhere = find_capabilities(tmp_path / "two")
    assert elsewhere.facts.host == first.facts.host
    assert not can_reach(Reach.SHARED_MEMORY, first, elsewhere.facts)
    (tmp_path / "open").mkdir(mode=0o755)
    assert find_capabilities(tmp_path / "open").facts.shared_memory == ""
    assert "mode 0700" in caplog.text
