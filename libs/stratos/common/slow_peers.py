"""Errors of peers that live and are late: one hand-off ends, and none of them is avoided.

Part of the tree in ``stratos.common.errors``, and internal: no client sees them.
"""

from __future__ import annotations

from stratos.common.errors import Retryable


class ReceiverSlow(Retryable):
    """The receiver of a hand-off did not answer its source in time."""

    code = "receiver_slow"
    public_text = "the platform could not finish this request now; try again"


class SourceSlow(Retryable):
    """The KV of a hand-off would come later than it can be had elsewhere."""

    code = "source_slow"
    public_text = "the platform could not finish this request now; try again"
