"""Roll-outs as JSON and back, and the texts in which people say steps, times and gates."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from itertools import pairwise
from typing import Any

from pydantic import ConfigDict, TypeAdapter, with_config

from stratos.common.errors import BadRequest
from stratos.common.json_fields import from_fields
from stratos.core.files.digest import is_digest
from stratos.store.models.alias_forms import check_alias_name
from stratos.store.models.alias_record import WHOLE
from stratos.store.models.rollout_record import LEAST_DRIFT, RolloutGates, RolloutRecord

MAX_STEPS = 20
GATES = tuple(field.name for field in fields(RolloutGates))
_ADAPTER = TypeAdapter(with_config(ConfigDict(extra="forbid"))(RolloutRecord))
_NATS = re.compile(r"[0-9]{1,2}(\.[0-9]{1,6})?\Z")
_PERCENT = re.compile(r"(?P<sign>\+?)(?P<number>[0-9]{1,4}(\.[0-9]{1,4})?)%\Z")
_SPAN = re.compile(r"(?P<number>[0-9]{1,7}(\.[0-9]{1,3})?)(?P<unit>s|m|h|)\Z")
_UNITS_S = {"": 1, "s": 1, "m": 60, "h": 3600}


def rollout_from_json(model: str, value: object) -> RolloutRecord:
    """The roll-out that an object says; fields it lacks have their defaults.

    Raises:
        BadRequest: an unknown field, or a value that cannot be; ``param`` names the field.
    """
    check_alias_name(model)
    if not isinstance(value, dict) or "model" in value:
        raise BadRequest("a roll-out is an object of its fields", param="rollout")
    found = from_fields(_ADAPTER, {**value, "model": model}, what=f"roll-out of {model!r}", param="rollout")
    for param, digest in (("old", found.old), ("new", found.new)):
        if not is_digest(digest):
            raise BadRequest(f"{param} must be a SHA-256 in hexadecimal", param=param)
    if found.old == found.new:
        raise BadRequest(f"all requests for {model!r} go to this revision already", param="to")
    check_steps(found.steps)
    if not 0 <= found.step < len(found.steps):
        raise BadRequest("there is no such step", param="step")
    gates = found.gates
    if len(found.steps) == 1 and (gates.ttft_p99 is not None or gates.itl_p99 is not None):
        raise BadRequest("ttft_p99 and itl_p99 compare two revisions: they need a step below 100", param="gates")
    if gates == RolloutGates():
        raise BadRequest(f"a roll-out needs a gate; there are {', '.join(GATES)}", param="gates")
    return found


def rollout_to_json(rollout: RolloutRecord) -> dict[str, Any]:
    """Every field that has a value, but the model, which is the record's id."""
    value: Mapping[str, Any] = _ADAPTER.dump_python(rollout, mode="json", exclude_none=True)
    return {field: value[field] for field in value if field != "model"}


def check_steps(steps: Sequence[int]) -> Sequence[int]:
    """Steps that a roll-out can have; raises ``BadRequest``."""
    grows = all(before < after for before, after in pairwise(steps))
    if not (1 <= len(steps) <= MAX_STEPS and grows and steps[0] >= 1 and steps[-1] == WHOLE):
        text = f"steps are at most {MAX_STEPS} growing per cents that end in {WHOLE}, such as 10,50,100"
        raise BadRequest(text, param="steps")
    return steps


def parsed_steps(text: str) -> list[int]:
    """The steps that ``10,50,100`` says; raises ``BadRequest``."""
    parts = text.split(",")
    if not all(part.isascii() and part.isdecimal() and len(part) <= 3 for part in parts):
        raise BadRequest(f"{text!r}: steps are whole per cents, such as 10,50,100", param="steps")
    return list(check_steps([int(part) for part in parts]))


def parsed_span_s(text: str, param: str) -> float:
    """Seconds that ``5m`` says, or ``90s``, ``1h``, ``300``; raises ``BadRequest``."""
    if (match := _SPAN.match(text)) is None:
        raise BadRequest(f"{text!r}: write a time such as 90s, 5m or 1h", param=param)
    return float(match["number"]) * _UNITS_S[match["unit"]]


def parsed_gates(text: str) -> dict[str, float]:
    """The gates that ``errors=0.5%,ttft_p99=+20%,drift=0.05`` says; raises ``BadRequest``."""
    found = dict[str, float]()
    for part in text.split(","):
        name, _, bound = part.partition("=")
        if name not in GATES:
            raise BadRequest(f"there is no gate {name!r}; there are {', '.join(GATES)}", param="gates")
        if name in found:
            raise BadRequest(f"the gate {name} is there twice", param="gates")
        found[name] = _nats(part, bound) if name == "drift" else _percent(part, name, bound)
    return found


def _nats(part: str, bound: str) -> float:
    if _NATS.match(bound) is None:
        raise BadRequest(f"{part!r}: write drift=0.05, nats of log probability", param="gates")
    if float(bound) < LEAST_DRIFT:
        raise BadRequest(f"{part!r}: a bound on drift is {LEAST_DRIFT} nats or more", param="gates")
    return float(bound)


def _percent(part: str, name: str, bound: str) -> float:
    match, sign = _PERCENT.match(bound), "" if name == "errors" else "+"
    if match is None or match["sign"] != sign:
        raise BadRequest(f"{part!r}: write {name}={sign}20%", param="gates")
    return float(match["number"])
