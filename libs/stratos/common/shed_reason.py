"""Reasons for which a full system refuses a request: one closed set for the wire, the header, labels and receipts."""

from __future__ import annotations

import enum


class ShedReason(enum.StrEnum):
    """Why a full system refused a request; values of a header and of labels."""

    QUEUE_FULL = "queue_full"
    """There was no place for it."""
    MEMORY_PRESSURE = "memory_pressure"
    """The model's KV pools are nearly full, and it is of the lowest class."""
    LOAD_SHED = "load_shed"
    """It had a place, which another request got."""
