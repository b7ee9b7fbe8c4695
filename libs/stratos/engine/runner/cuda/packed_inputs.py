"""Inputs of a decode step from the host, in one static buffer: items of attention, fields of rows, new table entries.

One copy brings as much of it as the step uses; whatever reads it lies in the same captured graph, after it on the
stream.
"""

from __future__ import annotations

import numpy as np
import torch

from stratos.engine.attention.context_parts import ITEM_FIELDS
from stratos.engine.memory.copies import copy_to_device
from stratos.engine.triton_kernels.decode_inputs import NUM_FIELDS

MAX_VALUES = 1 << 16
"""Entries of block tables that travel in the buffer: eight tables of 128K tokens in blocks of 16."""
ALIGNMENT = 4
"""Alignment of the parts, in elements: 16 bytes."""


class PackedInputs:
    """Allocated once.

    Args:
        max_batch: rows of the largest step.
        num_items: of the largest step.
        device: where it is.
    """

    def __init__(self, max_batch: int, num_items: int, device: torch.device) -> None:
        self._max_batch, self._num_items = -(-max_batch // ALIGNMENT) * ALIGNMENT, num_items
        head = num_items * ITEM_FIELDS
        self._head = head + NUM_FIELDS * self._max_batch
        self._buffer = torch.zeros(self._head + MAX_VALUES, dtype=torch.int32, device=device)
        self.items = self._buffer[:head].view(num_items, ITEM_FIELDS)
        """int32 [items, ITEM_FIELDS]."""
        self.fields = self._buffer[head : self._head].view(NUM_FIELDS, self._max_batch)
        """int32 [NUM_FIELDS, at least max_batch]."""
        self.values = self._buffer[self._head :]
        """int32 [MAX_VALUES]."""

    def send(self, items: np.ndarray, fields: np.ndarray, values: np.ndarray) -> None:
        """Enqueue the copy; at most ``MAX_VALUES`` values."""
        host = np.zeros(self._head + len(values), dtype=np.int32)
        host[: items.size] = items.reshape(-1)
        host[self._num_items * ITEM_FIELDS : self._head].reshape(NUM_FIELDS, -1)[:, : fields.shape[1]] = fields
        host[self._head :] = values
        copy_to_device(host, self._buffer[: len(host)])
