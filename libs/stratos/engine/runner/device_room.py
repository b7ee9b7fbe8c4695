"""Memory of a device that an engine may plan with, as it is now."""

from __future__ import annotations

import torch

from stratos.engine.sizing.case import Room
from stratos.engine.sizing.fit import cpu_room
from stratos.engine.sizing.machine import read_machine, resident_bytes


def room_of(device: torch.device) -> Room:
    """Free and total memory of a GPU; on a CPU that of the machine, less what other programs have."""
    if device.type != "cuda":
        return cpu_room(read_machine(), taken_bytes=resident_bytes())
    free, total = torch.cuda.mem_get_info(device)
    return Room(is_gpu=True, total_bytes=total, free_bytes=free, host_free_bytes=read_machine().available_bytes)
