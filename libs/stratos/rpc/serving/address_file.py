"""The file in which a service tells where it listens, for a supervisor that let it pick free ports."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from stratos.common.files import replace_file


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceAddress:
    """Where a service process listens."""

    address: str
    metrics_address: str
    pid: int


def write_address_file(path: Path, address: ServiceAddress) -> None:
    """Write the file so that a reader sees all of it or none."""
    content = {"address": address.address, "metrics_address": address.metrics_address, "pid": address.pid}
    replace_text(path, json.dumps(content))


def replace_text(path: Path, text: str) -> None:
    """Replace a file so that a reader sees the old text or the new."""
    replace_file(path, text.encode())


def read_address_file(path: Path) -> ServiceAddress | None:
    """Read the file; ``None`` while it does not exist."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return ServiceAddress(address=content["address"], metrics_address=content["metrics_address"], pid=content["pid"])


def remove_address_file(path: Path) -> None:
    """Remove the file if it is there and was written by this process."""
    address = read_address_file(path)
    if address is not None and address.pid == os.getpid():
        path.unlink(missing_ok=True)
