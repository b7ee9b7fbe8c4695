"""One request in the ledger, and the text in which it is stored.

The tenant is not in the text: its id is in the name under which entries are kept.

An entry has a rank.  What the gateway of the request wrote stands above what another one took over from a worker, and a
later attempt above an earlier one; of two entries of one request the one of the higher rank stays, with the device time
of both.
"""

from __future__ import annotations

import enum
import json
from contextlib import suppress
from dataclasses import fields
from datetime import date, timedelta
from functools import lru_cache
from operator import attrgetter
from typing import Any

import orjson

from stratos.common.changed import record
from stratos.core.ledger.itls import Itls
from stratos.core.ledger.pricing import Amounts, Times, TokenCounts
from stratos.core.ledger.usage import MeterTag
from stratos.core.ledger.windows import Sample, WindowShare
from stratos.core.requests.pins import WRITE_COUNTS, CacheWrites
from stratos.core.requests.records import EPOCH_ATTEMPTS

OWN_RANK = 1_000_000
"""Of an entry by the gateway that answered the request: one more for each gateway that took the answer over."""


def claim_rank(attempt: int) -> float:
    """Rank of an entry that is taken over from a worker.

    It stands below what the gateway of the attempt wrote, and above all of the gateways before: theirs is a part of the
    answer.  Attempt 2 has rank 2, and attempt 1002, of the second gateway, 1000000.0015.
    """
    num_before, number = divmod(attempt, EPOCH_ATTEMPTS)
    return attempt if not num_before else OWN_RANK + num_before - 1 + (number + 1) / (2 * EPOCH_ATTEMPTS)


def num_attempts(rank: float) -> int:
    """Attempts of one gateway, of which such an entry has the last one."""
    return int(rank) + 1 if rank < OWN_RANK else round(rank % 1 * 2 * EPOCH_ATTEMPTS)


class RequestOutcome(enum.StrEnum):
    """How a request ended."""

    FINISHED = "finished"
    ABORTED = "aborted"
    """The client left."""
    FAILED = "failed"
    """The platform ended it with an error."""
    REPLAYED = "replayed"
    """The answer came from the response cache."""
    EXTERNAL = "external"
    """An external endpoint answered."""
    RECOVERED = "recovered"
    """Its gateway died; the count is that of a worker."""


@record(frozen=True, slots=True, kw_only=True)
class StageTimes:
    """Microseconds."""

    queue_us: int = 0
    prefill_us: int = 0
    decode_us: int = 0
    device_us: int = 0
    """Shares of the steps of all devices that worked on it."""
    by_attempt: tuple[tuple[int, int], ...] = ()
    """The same, for each attempt that a worker has reported; entries of one request put theirs together."""


NO_STAGES = StageTimes()
NO_TIMES = Times()


@record(frozen=True, slots=True, kw_only=True)
class LedgerEntry:
    """One prompt of a request, with all its choices."""

    request_id: str
    """Minted by the gateway; an entry is there once for each."""
    tenant: str
    plan: str
    tag: MeterTag
    outcome: RequestOutcome
    counts: TokenCounts
    amounts: Amounts
    stages: StageTimes = NO_STAGES
    times: Times = NO_TIMES
    is_kept: bool | None = None
    """The promised times were kept."""
    window: WindowShare | None = None
    """Share in its window; ``None`` where its plan promises no p99."""
    is_external: bool = False
    """It ran at the external endpoint, however it ended."""
    external_cost: int = 0
    """Charge of that endpoint to the platform, micro-units; no part of the tenant's charge."""
    rank: float = OWN_RANK
    prefix_hashes: str = ""
    """Keyed hashes of its beginnings (``prefix_hashes``); empty where there are none."""

    @property
    def day(self) -> str:
        """UTC day of the request's arrival, as 2026-11-22."""
        return day_of(self.tag.arrived_unix_ms)

    @property
    def group(self) -> str:
        """Group that it is added to, besides its tenant and day."""
        return GROUP_SEPARATOR.join((self.tag.model, self.tag.adapter, summed_key(self.tag.key_id)))

    @property
    def measures(self) -> dict[str, int]:
        """Numbers that are added up; zeros are left out."""
        amounts, counts = self.amounts, self.counts
        values = {
            "requests": 1,
            "prompt_tokens": counts.num_prompt,
            "cached_tokens": counts.num_cached,
            "output_tokens": counts.num_output,
            **counts.writes.counts,
            "device_us": self.stages.device_us,
            "gross": amounts.gross,
            "write_surcharge": amounts.write_surcharge,
            "cached_discount": amounts.cached_discount,
            "batch_discount": amounts.batch_discount,
            "replay_discount": amounts.replay_discount,
            "credit": amounts.credit,
            "externals": int(self.is_external),
            "external_cost": self.external_cost,
            "replays": int(self.outcome is RequestOutcome.REPLAYED),
            "promises": int(self.is_kept is not None),
            "violations": int(self.is_kept is False),
        }
        return {name: value for name, value in values.items() if value}


GROUP_SEPARATOR = "\x1f"
TOKENS = "jwt"
"""Stands in sums for all tokens of identity providers: an issuer has any number of subjects, and sums are kept."""
_DAY_MS = 24 * 3600 * 1000
_PLAIN_TAG = tuple(f.name for f in fields(MeterTag) if f.name != "is_batch")  # which the amounts tell
_compact = json.JSONEncoder(separators=(",", ":")).encode  # ``json.dumps`` makes an encoder for each call
_TOLD_TAG = tuple(name for name in _PLAIN_TAG if name not in ("model", "adapter", "key_id"))  # others are in the group
_STAGES = ("queue_us", "prefill_us", "decode_us")
_told_tag, _stages = attrgetter(*_TOLD_TAG), attrgetter(*_STAGES)


def day_of(unix_ms: int) -> str:
    """The UTC day of a time."""
    return _day(unix_ms // _DAY_MS)


@lru_cache(maxsize=64)
def _day(number: int) -> str:
    return (date(1970, 1, 1) + timedelta(days=number)).isoformat()


def summed_key(key_id: str) -> str:
    """The key that sums go by: an API key's id, or one for all tokens."""
    return TOKENS if key_id.startswith(f"{TOKENS}:") else key_id


def entry_to_text(entry: LedgerEntry) -> str:
    """Write an entry as it is stored: one line of JSON.

    The store adds ``g`` and ``m`` up, and takes them back for a higher rank; ``d``, device time by attempt, it puts
    together with that of the other entry, and counts in ``m``. It looks for ``d`` at the beginning.
    """
    value: dict[str, Any] = {
        "d": {str(attempt): device_us for attempt, device_us in entry.stages.by_attempt},
        "g": entry.group,
        "m": entry.measures,
        "plan": entry.plan,
        "outcome": entry.outcome.value,
        "rank": entry.rank,
        "subject": entry.tag.key_id if entry.tag.key_id != summed_key(entry.tag.key_id) else "",
        **dict(zip(_TOLD_TAG, _told_tag(entry.tag), strict=True)),
        **dict(zip(_STAGES, _stages(entry.stages), strict=True)),
        "ttft_us": entry.times.ttft_us,
        "itl_us": entry.times.itl_us,
        "w": None if entry.window is None else _share_to_json(entry.window),
        "p": entry.prefix_hashes,
    }
    given = {name: part for name, part in value.items() if part}
    with suppress(orjson.JSONEncodeError):  # a number of more than 64 bits
        if (text := orjson.dumps(given)).isascii():
            return text.decode()
    return _compact(given)


def measures_from_text(text: str) -> dict[str, int]:
    """Numbers of an entry as stored, which the store has added up; the rest of it is not looked at.

    Raises:
        ValueError: it is not one.
    """
    try:
        measures: dict[str, int] = json.loads(text)["m"]
        if any(type(number) is not int for number in measures.values()):
            raise ValueError("not an entry of the ledger: a measure is no whole number")
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not an entry of the ledger: {error}") from error
    return measures


def entry_from_text(request_id: str, tenant: str, text: str) -> LedgerEntry:
    """An entry as stored.

    Raises:
        ValueError: it is not one.
    """
    try:
        value = json.loads(text)
        model, adapter, key_id = value["g"].split(GROUP_SEPARATOR)
        m = value["m"]
        known = {"model": model, "adapter": adapter, "key_id": value.get("subject", key_id)}
        tag = MeterTag(**known, **{name: value[name] for name in _PLAIN_TAG if name in value})
        return LedgerEntry(
            request_id=request_id,
            tenant=tenant,
            plan=value.get("plan", ""),
            tag=tag,
            outcome=RequestOutcome(value["outcome"]),
            counts=TokenCounts(
                num_prompt=m.get("prompt_tokens", 0),
                num_cached=m.get("cached_tokens", 0),
                num_output=m.get("output_tokens", 0),
                writes=CacheWrites(*(m.get(name, 0) for name in WRITE_COUNTS)),
            ),
            amounts=Amounts(**{f.name: m.get(f.name, 0) for f in fields(Amounts)}),
            stages=StageTimes(
                device_us=m.get("device_us", 0),
                by_attempt=tuple(sorted((int(attempt), us) for attempt, us in value.get("d", {}).items())),
                **{name: value.get(name, 0) for name in _STAGES},
            ),
            times=Times(ttft_us=value.get("ttft_us"), itl_us=value.get("itl_us")),
            is_external=bool(m.get("externals")),
            external_cost=m.get("external_cost", 0),
            window=_share_from_json(value["w"]) if "w" in value else None,
            is_kept=None if not m.get("promises") else not m.get("violations"),
            rank=value.get("rank", 0),
            prefix_hashes=value.get("p", ""),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not an entry of the ledger: {error}") from error


def _share_to_json(share: WindowShare) -> dict[str, Any]:
    """The form that the store's script reads: seconds, step of the first token and whether it is over, number of ITLs,
    those over, their steps with counts in turn, stake."""
    value: dict[str, Any] = {"s": share.window_s}
    if share.ttft is not None:
        value |= {"t": share.ttft.bucket, "to": int(share.ttft.is_over)}
    if (itls := share.itls) is not None:
        value |= {"n": itls.num, "no": itls.num_over, "h": [number for pair in itls.steps for number in pair]}
    return value | ({"k": share.stake} if share.stake else {})


def _share_from_json(value: dict[str, Any]) -> WindowShare:
    ttft = Sample(bucket=value["t"], is_over=bool(value["to"])) if "t" in value else None
    itls = None
    if "n" in value:
        numbers = value["h"]
        itls = Itls(value["n"], value["no"], tuple(zip(numbers[::2], numbers[1::2], strict=True)))
    elif "i" in value:  # by a version that counted the mean of each answer
        itls = Itls(1, value["io"], ((value["i"], 1),))
    return WindowShare(window_s=value["s"], ttft=ttft, itls=itls, stake=value.get("k", 0))
