"""Embeddings of the fake runner: arithmetic by hand over its KV, and what must come out of an engine.

Component ``i`` of a number ``x`` is ``x * (i + 3) mod 251 - 125``.  Last-token pooling takes the sum of KV over all
positions (so one altered block changes it), mean pooling the mean of the components of each position's KV.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Sequence

from stratos.core.requests.embedding import PoolingKind
from stratos.engine.contract.plan import PlanRow, PooledRow

EMBEDDING_SIZE = 8


def components(number: int) -> list[float]:
    """The fake vector of a number."""
    return [float(number * (index + 3) % 251 - 125) for index in range(EMBEDDING_SIZE)]


def fake_pool(row: PlanRow, kv_at: Callable[[int], int], term: int) -> PooledRow:
    """Pooled values of a row; ``kv_at`` reads the KV of a position, ``term`` is the adapter's."""
    end = row.start + len(row.token_ids)
    if row.pool is PoolingKind.LAST:
        values = components(sum(kv_at(position) for position in range(end)) + term)
    else:
        parts = [components(kv_at(position) + term) for position in range(row.start, end)]
        values = [sum(column) for column in zip(*parts, strict=True)]
    return PooledRow(row.seq_id, array("d", values).tobytes())


def fake_embedding(
    kv: Sequence[int],
    pooling: PoolingKind,
    *,
    term: int = 0,
    normalizes: bool = True,
    num_dimensions: int | None = None,
) -> list[float]:
    """The vector that must come out for the KV of all positions of an input."""
    if pooling is PoolingKind.LAST:
        vector = components(sum(kv) + term)
    else:
        vector = [sum(column) / len(kv) for column in zip(*(components(k + term) for k in kv), strict=True)]
    vector = vector[:num_dimensions]
    length = math.sqrt(sum(value * value for value in vector)) if normalizes else 1.0
    return [value / max(length, 1e-12) for value in vector]
