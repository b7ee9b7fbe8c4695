"""Writes to the cluster, as a plan names them."""

from __future__ import annotations

from dataclasses import dataclass

from stratos_autoscaler.kubernetes.api import Object


@dataclass(frozen=True, slots=True)
class Apply:
    """Make an object, or change it where it is still as it was seen.

    ``version`` is that which was seen; empty: it was not there.
    """

    item: Object
    version: str = ""


@dataclass(frozen=True, slots=True)
class Delete:
    """Take an object away, if it is the one that was seen; its pods before it where ``is_foreground``."""

    kind: str
    name: str
    uid: str
    is_foreground: bool = False


@dataclass(frozen=True, slots=True)
class Finalize:
    """Say what a Model's end waits for."""

    finalizers: tuple[str, ...]


Step = Apply | Delete | Finalize
