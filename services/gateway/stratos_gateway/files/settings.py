"""How large files are, how many of a tenant, and for how long."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesConfig:
    """Files of tenants; there are none at a gateway without a platform key and an object store."""

    tenant_bytes: Annotated[int, Ge(0)] = 4 * 1024 * 1024 * 1024
    """Bytes of each tenant, results of its batches included; what has no room is refused. 0 keeps none."""
    tenant_files: Annotated[int, Gt(0)] = 1000
    """Files of each tenant."""
    max_bytes: Annotated[int, Gt(0)] = 512 * 1024 * 1024
    """Largest file."""
    max_lines: Annotated[int, Gt(0)] = 1_000_000
    """Most lines of a file for a batch."""
    kept_s: Annotated[float, Gt(0)] = 30 * 24 * 3600.0
    """Seconds that a file is kept whose upload does not say, and the longest that one may say."""
    upload_s: Annotated[float, Gt(0)] = 900.0
    """Longest time of one upload."""
    sweep_s: Annotated[float, Gt(0)] = 30.0
    """Seconds between two looks for objects whose file is gone."""
