"""Memory of recurrent states: slots of fixed size (``contract.states``), and what the rows of a step do with them.

A slot is float32 [layers, numbers of a layer], one contiguous run, and goes over the wire as it is, layer by layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from stratos.common.errors import InvalidCheckpoint
from stratos.core.kv import KvGeometry, KvRange
from stratos.engine.contract.states import HARMLESS, StateRow
from stratos.engine.memory.huge_pages import zeroed_bytes
from stratos.engine.memory.kv_pages import check_memory

NUM_SPARE = 1
"""Slots behind those of sequences: for what the runner computes by itself (``runner.known_tokens``)."""
FLOAT_BYTES = 4


@dataclass(slots=True)
class StepStates:
    """Slots of a step's rows, as the kernel reads them."""

    rows: np.ndarray
    """int64 [rows, 4]: first token, tokens, slot read, slot written."""
    snapshots: np.ndarray
    """int64 [snapshots, 3]: row, tokens of it, slot."""
    slots: torch.Tensor
    """All of them: float32 [slots, layers, numbers]."""


class StateSlots:
    """The slots of one runner on a CPU.

    Args:
        geometry: of the model; has layers with a state.
        num_slots: for sequences and snapshots.

    Raises:
        InvalidCheckpoint: memory is short.
    """

    def __init__(self, geometry: KvGeometry, num_slots: int) -> None:
        shape = (num_slots + NUM_SPARE, geometry.num_state_layers, geometry.state_layer_bytes // FLOAT_BYTES)
        num_bytes = torch.Size(shape).numel() * FLOAT_BYTES
        check_memory(num_bytes, "state_slots")
        try:
            self.tensor = zeroed_bytes(num_bytes).view(torch.float32).view(shape)
        except MemoryError as error:
            raise InvalidCheckpoint(f"{num_bytes} bytes of states do not fit; lower state_slots") from error
        self.num_slots = num_slots

    def prepare(self, places: Sequence[tuple[int, int]], states: Sequence[StateRow | None]) -> StepStates:
        """Lay out what the rows of a step read and write; ``places``: first token of each in the batch, tokens."""
        known = [state or HARMLESS for state in states]
        rows = [(*place, state.read, state.write) for place, state in zip(places, known, strict=True)]
        copies = [(row, count, slot) for row, s in enumerate(known) for count, slot in s.snapshots]
        table = np.array(copies, dtype=np.int64).reshape(-1, 3)
        return StepStates(np.array(rows, dtype=np.int64), table, self.tensor)

    @torch.inference_mode()
    def gather(self, slot: int, kv_range: KvRange, first_layer: int) -> memoryview:
        """Copy the layers of a range out of a slot; ``first_layer`` is what a range calls the first one."""
        part = self._part(slot, kv_range, first_layer).clone()
        return memoryview(part.view(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]  # numpy hides the protocol

    @torch.inference_mode()
    def scatter(self, slot: int, kv_range: KvRange, first_layer: int, payload: memoryview) -> None:
        """Write the layers of a range into a slot.

        Raises:
            ValueError: ``payload`` does not have their size.
        """
        part = self._part(slot, kv_range, first_layer)
        if payload.nbytes != part.nbytes:
            raise ValueError(f"the payload has {payload.nbytes} bytes, the states need {part.nbytes}")
        part.view(-1).view(torch.uint8).numpy()[:] = np.frombuffer(payload, dtype=np.uint8)

    def _part(self, slot: int, kv_range: KvRange, first_layer: int) -> torch.Tensor:
        return self.tensor[slot, kv_range.layer_begin - first_layer : kv_range.layer_end - first_layer]
