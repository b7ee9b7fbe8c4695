"""Which days and groups a question about usage means."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, timedelta

from stratos.common.errors import BadRequest
from stratos.core.ledger.exports import GROUP_COLUMNS, TAG_PREFIX
from stratos.core.ledger.segments import Place
from stratos.core.ledger.statement import days_of
from stratos.core.ledger.usage import MAX_COST_TAG_CHARS, MAX_COST_TAGS
from stratos.store.ledger.entry_reader import START

MAX_DAYS = 366


def days_between(query: Mapping[str, str], today: date) -> list[str]:
    """The days from ``start`` to ``end``, both included; the month so far where they are absent.

    Raises:
        BadRequest: not days, the wrong way round, or too many.
    """
    start = _day(query.get("start", today.replace(day=1).isoformat()), "start")
    end = _day(query.get("end", max(start, today).isoformat()), "end")
    num_days = (end - start).days + 1
    if not 1 <= num_days <= MAX_DAYS:
        raise BadRequest(f"from start to end there must be 1 to {MAX_DAYS} days", param="end")
    return [(start + timedelta(days=number)).isoformat() for number in range(num_days)]


def month_days(query: Mapping[str, str]) -> list[str]:
    """The days of ``month``; raises ``BadRequest``."""
    try:
        return days_of(query.get("month", ""))
    except ValueError as error:
        raise BadRequest(str(error), param="month") from None


def tags_of(query: Mapping[str, str]) -> tuple[str, ...]:
    """Names of the cost tags in ``group_by``; raises ``BadRequest``."""
    wanted = [name for name in query.get("group_by", "").split(",") if name.startswith(TAG_PREFIX)]
    names = tuple(dict.fromkeys(name.removeprefix(TAG_PREFIX) for name in wanted))
    if len(names) > MAX_COST_TAGS or any(not 0 < len(name) <= MAX_COST_TAG_CHARS for name in names):
        text = f"group_by takes up to {MAX_COST_TAGS} tags with names of up to {MAX_COST_TAG_CHARS} characters"
        raise BadRequest(text, param="group_by")
    return names


def columns_of(query: Mapping[str, str]) -> tuple[str, ...]:
    """Columns of ``group_by``, in their usual order; ``key`` is short for ``key_id``.

    Raises:
        BadRequest: an unknown one.
    """
    names = [n for n in query.get("group_by", "day,model").split(",") if not n.startswith(TAG_PREFIX)]
    wanted = {"key_id" if name == "key" else name for name in names if name}
    if unknown := sorted(wanted - set(GROUP_COLUMNS)):
        raise BadRequest(f"group_by has an unknown column {unknown[0][:64]!r}", param="group_by")
    return tuple(name for name in GROUP_COLUMNS if name in wanted)


def number(query: Mapping[str, str], name: str, default: int | None = None) -> int | None:
    """A whole number that is not negative; raises ``BadRequest``."""
    text = query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) <= 18):
        raise BadRequest(f"{name} must be a whole number", param=name)
    return int(text)


def day_of_query(query: Mapping[str, str]) -> str:
    """``day``; raises ``BadRequest``."""
    return _day(query.get("day", ""), "day").isoformat()


def place_of_query(query: Mapping[str, str]) -> Place:
    """``cursor``: the entry after which the answer begins; raises ``BadRequest``."""
    ms, _, request_id = query.get("cursor", "0").partition("-")
    if not (ms.isascii() and ms.isdecimal() and len(ms) <= 15):
        raise BadRequest("cursor must be the next_cursor of an answer", param="cursor")
    return (int(ms), request_id) if request_id else START


def _day(text: str, param: str) -> date:
    try:
        if len(text) == len("2026-11-22"):
            return date.fromisoformat(text)
    except ValueError:
        pass
    raise BadRequest(f"{param} must be a day such as 2026-11-22", param=param)
