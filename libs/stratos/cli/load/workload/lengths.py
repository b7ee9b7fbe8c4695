"""Distributions of lengths in tokens: fixed, uniform, log-normal, or those of a table."""

from __future__ import annotations

import bisect
import csv
import itertools
import math
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Protocol

from stratos.common.errors import BadRequest

FORMS = "TOKENS, fixed:TOKENS, uniform:LEAST,MOST, lognormal:MEDIAN,SIGMA[,MOST] or table:FILE"


class Lengths(Protocol):
    """A distribution over whole numbers from 1 on."""

    def draw(self, rng: Random) -> int:
        """A length."""
        ...


@dataclass(frozen=True, slots=True)
class FixedLength:
    """Always the same."""

    num_tokens: int

    def draw(self, rng: Random) -> int:
        """A length."""
        return self.num_tokens


@dataclass(frozen=True, slots=True)
class UniformLength:
    """Each length between two is as likely as any other; both count in."""

    least: int
    most: int

    def draw(self, rng: Random) -> int:
        """A length."""
        return rng.randint(self.least, self.most)


@dataclass(frozen=True, slots=True)
class LogNormalLength:
    """Logarithms of lengths are normal, as in published traces: unbounded, their mean is median * e^(sigma^2 / 2)."""

    median: float
    sigma: float
    most: int | None = None
    """Longer ones are cut to this, as a server's context does."""

    def draw(self, rng: Random) -> int:
        """A length."""
        length = max(1, round(rng.lognormvariate(math.log(self.median), self.sigma)))
        return length if self.most is None else min(length, self.most)


@dataclass(frozen=True, slots=True)
class TableLength:
    """Lengths with weights, such as the counts of a histogram."""

    lengths: tuple[int, ...]
    cumulative: tuple[float, ...]
    """Sums of the weights up to and including each."""

    def draw(self, rng: Random) -> int:
        """A length."""
        found = bisect.bisect_right(self.cumulative, rng.random() * self.cumulative[-1], hi=len(self.lengths) - 1)
        return self.lengths[found]


def parse_lengths(text: str, param: str) -> Lengths:
    """Read a flag that takes a distribution.

    Raises:
        BadRequest: it has none of the forms, a number makes no sense, or a line of the table is wrong; names the line.
    """
    kind, colon, rest = text.partition(":")
    if kind == "table" and rest:
        return _table(Path(rest), param)
    try:
        numbers = [float(number) for number in (rest if colon else text).split(",")]
    except ValueError:
        raise _refused(text, param) from None
    found = _of_numbers(kind if colon else "fixed", numbers)
    if found is None:
        raise _refused(text, param)
    return found


def _of_numbers(kind: str, numbers: list[float]) -> Lengths | None:
    if not all(map(math.isfinite, numbers)):
        return None
    match kind, numbers:
        case "fixed", [count] if count >= 1 and count == int(count):
            return FixedLength(int(count))
        case "uniform", [least, most] if 1 <= least <= most and (least, most) == (int(least), int(most)):
            return UniformLength(int(least), int(most))
        case "lognormal", [median, sigma, *most] if (
            median >= 1 and sigma >= 0 and len(most) < 2 and min(most, default=1) >= 1
        ):
            return LogNormalLength(median, sigma, *(int(bound) for bound in most))
    return None


def _table(path: Path, param: str) -> TableLength:
    rows: list[tuple[int, float]] = []
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.reader(file)
            rows += (_table_row(path, reader.line_num, row, param) for row in reader if row and row[0][:1] != "#")
    except OSError as error:
        raise BadRequest(f"{path} cannot be read: {error.strerror}", param=param) from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadRequest(f"{path} is no table: {error}", param=param) from None
    if not sum(weight for _, weight in rows):
        raise BadRequest(f"{path} has no length with a weight", param=param)
    lengths, weights = zip(*rows, strict=True)
    return TableLength(lengths, tuple(itertools.accumulate(weights)))


def _table_row(path: Path, number: int, row: list[str], param: str) -> tuple[int, float]:
    try:
        length, weight = int(row[0]), float(row[1]) if len(row) > 1 else 1.0
    except ValueError:
        length, weight = 0, 0.0
    if length < 1 or not 0 <= weight < math.inf:
        raise BadRequest(f"{path}:{number}: a line is LENGTH or LENGTH,WEIGHT, not {','.join(row)!r}", param=param)
    return length, weight


def _refused(text: str, param: str) -> BadRequest:
    return BadRequest(f"{param} must be {FORMS}, not {text!r}", param=param)
