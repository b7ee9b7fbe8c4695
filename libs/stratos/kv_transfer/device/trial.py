"""Tries once, at start, what a receiver over exported memory needs: a peer then never chooses it in vain.

Sockets that processes left in the directory when they died are removed here, too.
"""

from __future__ import annotations

import secrets
from pathlib import Path

from stratos.kv_transfer.device.lease import listen_at, remove_leftovers
from stratos.kv_transfer.device.memory import DeviceMemory, NoDeviceRoomError
from stratos.kv_transfer.private_directory import private_directory


def find_fault(memory: DeviceMemory, directory: Path) -> str:
    """Why this process can lend no memory of its device; empty if it can. Blocks; takes nothing that stays.

    Mapping what another process has exported cannot be tried alone: the driver maps no memory of its own process.
    A device that is full exports another time.
    """
    path = private_directory(directory) / f"kv-{secrets.token_hex(8)}.sock"
    try:
        remove_leftovers(path.parent)
        listen_at(path).close()
    except OSError as error:
        return f"cannot listen in {directory}: {error}"
    finally:
        path.unlink(missing_ok=True)
    try:
        memory.export(1)
    except NoDeviceRoomError:
        return ""
    except RuntimeError as error:
        return f"the device exports no memory: {error}"
    return ""
