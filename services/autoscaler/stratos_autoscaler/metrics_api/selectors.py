"""Label selectors as text, and quantities in the form that Kubernetes writes them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from decimal import Decimal

from stratos.common.errors import BadRequest

_KEY = r"(?P<key>[A-Za-z0-9]([\w./-]*[A-Za-z0-9])?)"
_SET = re.compile(rf"{_KEY}\s+(?P<word>in|notin)\s*\((?P<values>[^()]*)\)\Z")
_EQUAL = re.compile(rf"{_KEY}\s*(?P<sign>==|=|!=)\s*(?P<value>[\w.-]*)\Z")
_EXISTS = re.compile(rf"(?P<not>!?)\s*{_KEY}\Z")
_OUTSIDE = re.compile(r",(?![^(]*\))")
_SUFFIXES = ("m", "", "k", "M", "G", "T", "P", "E")
Matcher = Callable[[Mapping[str, str]], bool]


def parse_selector(text: str) -> Matcher:
    """Parse a Kubernetes label selector.

    Returns:
        Whether a set of labels is selected.

    Raises:
        BadRequest: it cannot be read.
    """
    parts = [_parse(part.strip()) for part in _OUTSIDE.split(text) if part.strip()]
    return lambda labels: all(part(labels) for part in parts)


def _parse(part: str) -> Matcher:
    if found := _SET.match(part):
        values = {value.strip() for value in found["values"].split(",")}
        key, is_in = found["key"], found["word"] == "in"
        return lambda labels: (labels.get(key) in values) is is_in
    if found := _EQUAL.match(part):
        key, value, is_equal = found["key"], found["value"], found["sign"] != "!="
        return lambda labels: (labels.get(key) == value) is is_equal
    if found := _EXISTS.match(part):
        key, is_there = found["key"], not found["not"]
        return lambda labels: (key in labels) is is_there
    raise BadRequest(f"{part!r} is no part of a label selector", param="labelSelector")


def quantity(value: float) -> str:
    """A number as ``resource.Quantity`` writes it: thousandths at most, and the largest suffix that leaves it whole.

    0.853 -> "853m"; 12 -> "12"; 12000 -> "12k"; 1234.5678 -> "1234568m", rounded up as Kubernetes does.
    """
    if value < 0:
        raise ValueError(f"{value} is no load")
    number, place = math.ceil(Decimal(repr(value)) * 1000), 0
    if not number:
        return "0"
    while number % 1000 == 0 and place < len(_SUFFIXES) - 1:
        number, place = number // 1000, place + 1
    return f"{number}{_SUFFIXES[place]}"
