"""The order of a file's lines by their prefixes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stratos_gateway.batches.prefixes import KEY_BYTES


def prefix_order(keys: bytes | bytearray) -> npt.NDArray[np.int64]:
    """Numbers of lines by their keys; lines of one key stay in their order.

    Args:
        keys: of all lines, one after another.
    """
    columns = np.frombuffer(keys, dtype=">u4").reshape(-1, KEY_BYTES // 4).T
    return np.lexsort(columns[::-1]).astype(np.int64, copy=False)
