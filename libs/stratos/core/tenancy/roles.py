"""Roles of keys: what their owners may do."""

from __future__ import annotations

import enum


class Role(enum.StrEnum):
    """Each role may do what the ones before it may."""

    TENANT = "tenant"
    """Calls models."""
    TENANT_ADMIN = "tenant-admin"
    """Makes, rotates and revokes the keys of its own tenant, and reads its tenant's record and audit log."""
    ADMIN = "admin"
    """Everything, for every tenant."""

    def includes(self, other: Role) -> bool:
        """Whether this role may do what ``other`` may."""
        return _RANKS[self] >= _RANKS[other]


_RANKS = {role: rank for rank, role in enumerate(Role)}
