"""Outcomes of both sides, side by side, and the reasons of what fails here alone.

A reason belongs to a file of tests, to a test, or to one of its cases, and the longest name that a test begins with
holds.  A failure without a reason is a fault, and so is a reason without a failure.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]
REASONS = Path(__file__).with_name("reasons.json")
_ENDS = ("::", "[")
"""What comes after the name of a file or a test where it is not the whole one."""
_VERDICTS = ("both", "here", "there", "neither", "skipped")


def compare(theirs: Mapping[str, Row], ours: Mapping[str, Row], reasons: Mapping[str, str]) -> list[Row]:
    """One row for each test that asked a server on either side, in the order of names.

    ``verdict`` is ``both`` where both passed, ``here`` where it passed with vLLM and not with ours, ``there`` for the
    contrary, ``neither``, or ``skipped`` where the test skips itself.  A failure here alone has its ``why``.
    """
    names = sorted(name for name in {**theirs, **ours} if _is_compared(theirs.get(name), ours.get(name)))
    rows = [_row(name, theirs.get(name), ours.get(name)) for name in names]
    for row in rows:
        if row["verdict"] == "here" and (name := reason_name(row["test"], reasons)):
            row["why"] = reasons[name]
    return rows


def read_reasons(path: Path = REASONS) -> dict[str, str]:
    """Reasons by the names of files, tests and cases."""
    groups = json.loads(path.read_text())
    return {name: group["reason"] for group in groups for name in group["tests"]}


def reason_name(test: str, reasons: Iterable[str]) -> str:
    """The longest name of a reason that holds for a test; "" where none does."""
    held = [name for name in reasons if test == name or test.startswith(tuple(name + end for end in _ENDS))]
    return max(held, key=len, default="")


def faults(rows: Sequence[Row], reasons: Mapping[str, str], *, is_whole: bool) -> list[str]:
    """Failures here alone without a reason, and reasons without such a failure.

    Args:
        rows: of a run.
        reasons: of the project.
        is_whole: all tests ran on both sides, so a reason that no test has is one too many, and a test that has not run
            here has failed.
    """
    failed = [r["test"] for r in rows if r["verdict"] == "here" and (is_whole or r["ours"] != "not run")]
    held = {reason_name(test, reasons) for test in failed}
    found = [f"{test} fails here alone, without a reason" for test in failed if not reason_name(test, reasons)]
    met = {reason_name(row["test"], reasons) for row in rows if "not run" not in (row["vllm"], row["ours"])}
    over = [name for name in reasons if name not in held and (is_whole or name in met)]
    return found + [f"{name} has a reason and does not fail here alone" for name in over]


def _is_compared(*rows: Row | None) -> bool:
    """The test asked a server on either side, and was left out on none."""
    found = [row for row in rows if row is not None]
    return any(row["requests"] for row in found) and all(row["outcome"] != "left out" for row in found)


def _row(name: str, theirs: Row | None, ours: Row | None) -> Row:
    at_vllm, at_ours = _outcome(theirs), _outcome(ours)
    return {
        "test": name,
        "verdict": _verdict(at_vllm, at_ours),
        "vllm": at_vllm,
        "ours": at_ours,
        "reason": (ours or {}).get("reason", "") if at_ours != "passed" else (theirs or {}).get("reason", ""),
    }


def _outcome(row: Row | None) -> str:
    return "not run" if row is None else str(row["outcome"])


def _verdict(theirs: str, ours: str) -> str:
    if "skipped" in (theirs, ours):
        return "skipped"
    verdicts = {(True, True): "both", (True, False): "here", (False, True): "there", (False, False): "neither"}
    return verdicts[theirs == "passed", ours == "passed"]


def counts(rows: Sequence[Row]) -> dict[str, int]:
    """Number of tests of each verdict."""
    counted = Counter(row["verdict"] for row in rows)
    return {verdict: counted[verdict] for verdict in _VERDICTS}


def left_out(*sides: Mapping[str, Row]) -> dict[str, int]:
    """Number of cases that were left out on either side, by reason."""
    cases = {name: row["reason"] for side in sides for name, row in side.items() if row["outcome"] == "left out"}
    return dict(Counter(cases.values()))


def markdown(rows: Sequence[Row]) -> str:
    """Reasons of what fails here alone, with the number of tests and the first of them."""
    found = dict[str, list[str]]()
    for row in rows:
        if row["verdict"] == "here":
            found.setdefault(row.get("why", "none"), []).append(row["test"].rpartition("/")[2])
    lines = [
        f"| {len(tests)} | `{tests[0].partition('::')[2]}` | {why} |"
        for why, tests in sorted(found.items(), key=lambda item: (-len(item[1]), item[1]))
    ]
    return "\n".join(["| tests | the first | why |", "|---|---|---|", *lines])
