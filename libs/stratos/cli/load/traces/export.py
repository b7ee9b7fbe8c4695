"""The ledger's entries as a trace: when requests came, how long they were, how much of each prompt was cached.

Nothing of a prompt is in the ledger, and nothing can be in the trace: ids of blocks are numbers that are counted up.
Tenants have pseudonyms, made with a salt that is drawn for each file and kept nowhere, so two files cannot be joined.

The ledger knows how many tokens of a prompt were cached, not of which earlier prompt they were.  They are taken to be
the beginning of the tenant's latest prompt that is long enough, for the same model and adapter: the platform shares no
cache between tenants.
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from stratos.cli.load.traces.mooncake import BLOCK_TOKENS, TraceRow

NUM_REMEMBERED = 64
"""Prompts of a tenant and model whose beginnings later ones may share."""
_PSEUDONYM_CHARS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportNames:
    """Tenants and models of a file."""

    salt: bytes
    keeps_names: bool = False
    """Tenants and models have their own names; else tenants have pseudonyms, and models are left out."""

    def tenant(self, name: str) -> str:
        """The name that a tenant has in the file."""
        if self.keeps_names:
            return name
        return "t-" + hmac.new(self.salt, name.encode(), hashlib.sha256).hexdigest()[:_PSEUDONYM_CHARS]

    def model(self, entry: Mapping[str, Any]) -> str:
        """The name that the request had asked for; empty where it is left out."""
        return str(entry["adapter"] or entry["model"]) if self.keeps_names else ""


class LedgerTrace:
    """Makes rows of entries, one day after the other.

    Args:
        names: of tenants and models.
    """

    def __init__(self, names: ExportNames) -> None:
        self._names = names
        self._ids = itertools.count()
        self._earlier: dict[tuple[str, str, str], deque[tuple[int, ...]]] = {}
        self._first_ms: int | None = None

    def rows(self, entries: Iterable[Mapping[str, Any]]) -> Iterator[TraceRow]:
        """Rows of a day's entries in the order of arrival; embeddings, and requests without output, are left out."""
        generations = (one for one in entries if one["output_tokens"] and one["prompt_tokens"])
        for entry in sorted(generations, key=lambda one: (one["arrived_unix_ms"], one["request_id"])):
            if self._first_ms is None:
                self._first_ms = entry["arrived_unix_ms"]
            yield TraceRow(
                timestamp_ms=entry["arrived_unix_ms"] - self._first_ms,
                num_prompt_tokens=entry["prompt_tokens"],
                num_output_tokens=entry["output_tokens"],
                hash_ids=self._blocks(entry),
                tenant=self._names.tenant(entry["tenant"]),
                model=self._names.model(entry),
            )

    def _blocks(self, entry: Mapping[str, Any]) -> tuple[int, ...]:
        key = (entry["tenant"], entry["model"], entry["adapter"])
        earlier = self._earlier.setdefault(key, deque(maxlen=NUM_REMEMBERED))
        num_blocks = -(-entry["prompt_tokens"] // BLOCK_TOKENS)
        num_shared = min(entry["cached_tokens"] // BLOCK_TOKENS, num_blocks)
        source = next((one for one in reversed(earlier) if len(one) >= num_shared), ())
        shared = source[:num_shared]
        found = (*shared, *itertools.islice(self._ids, num_blocks - len(shared)))
        earlier.append(found)
        return found
