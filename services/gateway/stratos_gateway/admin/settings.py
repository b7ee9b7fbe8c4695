"""Where the admin API listens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminConfig:
    """The admin API."""

    listen: str = ""
    """host:port of the admin API, for keys of the roles admin and tenant-admin; empty serves none. Keep it off the port
    and the networks that tenants reach."""
    listener_fd: Annotated[int, Ge(0)] | None = None
    """Inherited listening socket to take connections from instead, shared with other gateways: `stratos up` has one."""
    plaintext: bool = False
    """Answer without TLS also where the platform has a certificate: for a port on loopback. Else the port has the
    certificate of mTLS, of which clients check authority and name but show none themselves, or that of the API."""
    forget_after_s: Annotated[float, Gt(0)] = 4.0
    """Seconds from the deletion of a tenant until its caches are dropped: more than SNAPSHOT__POLL_S, so that its
    requests have ended."""
    calls_per_min: Annotated[int, Ge(1)] = 120
    """Calls that each gateway answers the keys of one tenant a minute, those of the role admin left out. After a pause
    60 may follow each other at once."""
    max_body_bytes: Annotated[int, Ge(1024)] = 4 * 1024 * 1024
    """Largest body, such as a declaration of all tenants."""
