"""The ledger's entries as a trace: when requests came, how long they were, which of them began alike.

Nothing of a prompt is in the ledger but keyed hashes of its beginnings, of which a tenant's are equal for equal ones.
They are hashed again with a salt that is drawn for each file and kept nowhere, as names of tenants are, so two files
cannot be joined, nor a file with the ledger.

An entry without hashes, of an older version or of a gateway without a platform key, says how many tokens of its prompt
were cached, not of which earlier prompt they were.  They are taken to be the beginning of the tenant's latest prompt
that is long enough, for the same model and adapter: the platform shares no cache between tenants.  So is what lies
behind the last hash of a very long prompt.
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
from stratos.core.ledger.prefix_hashes import split_prefix_hashes

NUM_REMEMBERED = 64
"""Prompts of a tenant and model whose beginnings later ones may share."""
_PSEUDONYM_CHARS = 10
_HASHED_BITS = 48
"""Of ids that are made of hashes; those that are counted up are below them all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportNames:
    """Tenants, models and blocks of a file."""

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

    def block(self, tenant: str, prefix_hash: str) -> int:
        """The id that the block at the end of a prefix has in the file."""
        digest = hmac.digest(self.salt, f"{tenant}\0{prefix_hash}".encode(), "sha256")
        return 1 << _HASHED_BITS | int.from_bytes(digest[: _HASHED_BITS // 8], "big")


class LedgerTrace:
    """Makes rows of entries, one day after the other.

    Args:
        names: of tenants, models and blocks.
    """

    def __init__(self, names: ExportNames) -> None:
        self._names = names
        self._ids = itertools.count()
        self._earlier: dict[tuple[str, str, str], deque[tuple[int, ...]]] = {}
        self._first_ms: int | None = None
        self.num_guessed = 0
        """Rows so far whose entry does not tell all of what their prompt shares."""

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
        """Ids of a prompt's blocks; that of the last one, which is not full, is its own."""
        key = (entry["tenant"], entry["model"], entry["adapter"])
        earlier = self._earlier.setdefault(key, deque(maxlen=NUM_REMEMBERED))
        num_full, num_blocks = entry["prompt_tokens"] // BLOCK_TOKENS, -(-entry["prompt_tokens"] // BLOCK_TOKENS)
        hashes = split_prefix_hashes(entry.get("prefix_hashes", ""))[:num_full]
        shared = tuple(self._names.block(entry["tenant"], one) for one in hashes)
        if len(shared) < num_full:
            self.num_guessed += 1
            shared = _guessed(shared, entry["cached_tokens"] // BLOCK_TOKENS, earlier)
        found = (*shared, *itertools.islice(self._ids, num_blocks - len(shared)))
        earlier.append(found)
        return found


def _guessed(known: tuple[int, ...], num_cached: int, earlier: deque[tuple[int, ...]]) -> tuple[int, ...]:
    """The cached blocks of a prompt of which the first ones are known: those of the latest that begins with these."""
    alike = (one for one in reversed(earlier) if len(one) >= num_cached and one[: len(known)] == known)
    return next(alike, known)[: max(len(known), num_cached)]
