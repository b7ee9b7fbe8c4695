"""What NVML is asked of a GPU; through callbacks of ctypes, which as C itself want an address."""

import ctypes
import sys
from types import SimpleNamespace

import pytest
import torch

from stratos.engine.runner.cuda.device_facts import FABRIC_COMPLETED, facts_of

CLUSTER = bytes(range(1, 17))


class FabricInfo(ctypes.Structure):
    _fields_ = (("clusterUuid", ctypes.c_uint8 * 16), ("cliqueId", ctypes.c_uint32), ("state", ctypes.c_uint8))


@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
def fill(_handle: int, address: int) -> int:
    found = ctypes.cast(address, ctypes.POINTER(FabricInfo)).contents
    found.clusterUuid[:], found.cliqueId, found.state = CLUSTER, 7, FABRIC_COMPLETED
    return 0


@pytest.mark.parametrize("suffix", ["", "V"])
def test_the_fabric_is_written_where_nvml_was_told(monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    nvml = SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda uuid: {"GPU-1": 1}[uuid],
        **{f"c_nvmlGpuFabricInfo{suffix}_t": FabricInfo, f"nvmlDeviceGetGpuFabricInfo{suffix}": fill},
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(uuid=str(index)))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda _, other: other == 2)
    facts = facts_of(torch.device("cuda", 1))
    assert (facts.uuid, facts.peers, facts.fabric) == ("GPU-1", ("GPU-2",), f"{CLUSTER.hex()}.7")
