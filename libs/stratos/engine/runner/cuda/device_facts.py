"""Facts of a GPU for other processes: its name, its neighbours, the NVLink domain that it hangs on."""

from __future__ import annotations

import ctypes
import importlib
import logging
from typing import Any

import torch

from stratos.core.device.facts import NO_DEVICE, DeviceFacts

_log = logging.getLogger(__name__)
FABRIC_COMPLETED = 3
"""State of a GPU that has joined its fabric (nvmlGpuFabricInfo)."""


def facts_of(device: torch.device) -> DeviceFacts:
    """Facts of a GPU; none of a CPU."""
    if device.type != "cuda":
        return NO_DEVICE
    index = torch.cuda.current_device() if device.index is None else device.index
    uuid = _uuid(index)
    others = [other for other in range(torch.cuda.device_count()) if other != index]
    peers = tuple(_uuid(other) for other in others if torch.cuda.can_device_access_peer(index, other))
    return DeviceFacts(uuid=uuid, fabric=_fabric(uuid), peers=peers)


def _uuid(index: int) -> str:
    uuid = str(torch.cuda.get_device_properties(index).uuid)
    return uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"


def _fabric(uuid: str) -> str:
    """Cluster and clique, where NVML is installed and knows of one."""
    try:
        nvml: Any = importlib.import_module("pynvml")
        nvml.nvmlInit()
        handle, has_versions = nvml.nvmlDeviceGetHandleByUUID(uuid), hasattr(nvml, "c_nvmlGpuFabricInfoV_t")
        found = nvml.c_nvmlGpuFabricInfoV_t() if has_versions else nvml.c_nvmlGpuFabricInfo_t()
        ask = nvml.nvmlDeviceGetGpuFabricInfoV if has_versions else nvml.nvmlDeviceGetGpuFabricInfo
        ask(handle, ctypes.byref(found))  # handed on to C as it is: by value, C would write where the bytes point
    except Exception as error:  # a driver may answer anything: then there is no fabric
        _log.debug("no NVLink fabric is known: %s", error)
        return ""
    cluster = bytes(found.clusterUuid)
    return f"{cluster.hex()}.{found.cliqueId}" if found.state == FABRIC_COMPLETED and any(cluster) else ""
