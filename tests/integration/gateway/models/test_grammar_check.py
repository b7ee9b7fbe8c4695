"""Grammars that are meant to hurt are refused with 400 in bounded time and memory, and hurt no other request."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import select
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from stratos.common.errors import BadRequest, Overloaded
from stratos.core.requests.grammar import (
    MAX_REGEX_BYTES,
    TOO_COMPLEX,
    GrammarKind,
    GrammarSpec,
    check_grammar,
    choice_grammar,
    schema_grammar,
)
from stratos_gateway.models import grammar_check, grammar_sandbox
from stratos_gateway.models.grammar_check import GrammarCheck
from stratos_gateway.openai.fields import WantedGrammar
from tests.support.paths import BASE_MODEL

VOCAB_SIZE = json.loads((BASE_MODEL / "config.json").read_text())["vocab_size"]
GOOD = WantedGrammar(GrammarSpec(GrammarKind.REGEX, "[0-9]{3}"), "structured_outputs.regex")


async def check(checks: GrammarCheck, wanted: WantedGrammar, tenant: str) -> None:
    await checks.check(wanted.spec, wanted.param, tenant)


@pytest.fixture
async def checks() -> AsyncIterator[GrammarCheck]:
    made = GrammarCheck(BASE_MODEL, VOCAB_SIZE, (0,))
    await check(made, GOOD, "t")
    yield made
    made.close()


@pytest.fixture(scope="module")
def shared_checks() -> Iterator[GrammarCheck]:
    """Of tests that need no process of their own; the first grammar has started it."""
    made = GrammarCheck(BASE_MODEL, VOCAB_SIZE, (0,))
    asyncio.run(check(made, GOOD, "t"))
    yield made
    made.close()


def chained(number: int, link: dict[str, Any]) -> dict[str, Any]:
    """Definitions, each of which holds the next one."""
    text = json.dumps(link)
    names: dict[str, Any] = {f"a{i}": json.loads(text.replace("NEXT", f"#/$defs/a{i + 1}")) for i in range(number)}
    return {"$ref": "#/$defs/a0", "$defs": {**names, f"a{number}": {"type": "string"}}}


REFUSED: dict[str, tuple[str, Any]] = {
    "regex: 15 000 optional letters": ("regex", "a?" * 15_000 + "a" * 15_000),
    "regex: nested groups": ("regex", "(" * 2000 + "a" + ")" * 2000),
    "regex: nothing matches": ("regex", r"[^\x00-\U0010ffff]"),
    "regex: half a character": ("regex", "\ud800"),
    "lark: a chain of rules that overflows a stack": (
        "lark",
        "start:a0\n" + "".join(f"a{i}:a{i + 1}\n" for i in range(700)) + 'a700:"a"\n',
    ),
    "lark: nested brackets": ("lark", "start: " + "[" * 4000 + '"a"' + "]" * 4000),
    "lark: tokens that double": (
        "lark",
        "start: R0\n" + "".join(f"R{i}: R{i + 1} R{i + 1}\n" for i in range(60)) + 'R60: "a"\n',
    ),
    "lark: a rule that is itself": ("lark", "start: s\ns: s\n"),
    "lark: deep JSON": ("lark", "start: %json " + "[" * 2000 + "]" * 2000),
    "schema: itself": ("json", {"$ref": "#"}),
    "schema: two that are each other": (
        "json",
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    ),
    "schema: references that overflow a stack": ("json", chained(1500, {"$ref": "NEXT"})),
    "schema: arrays of arrays by reference": ("json", chained(900, {"type": "array", "items": {"$ref": "NEXT"}})),
    "schema: all of itself": ("json", {"$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}, {}]}}, "$ref": "#/$defs/a"}),
    "schema: nested": ("json", json.loads('{"type":"array","items":' * 400 + "{}" + "}" * 400)),
    "schema: text that is nested": ("json", '{"a":' * 5000 + "1" + "}" * 5000),
    "schema: product of alternatives": (
        "json",
        {"allOf": [{"anyOf": [{"properties": {f"p{i}{j}": {}}} for j in range(4)]} for i in range(16)]},
    ),
    "schema: many patterns": (
        "json",
        {"properties": {f"p{i}": {"type": "string", "pattern": f"^(a|b)*c{{3,90}}{i}$"} for i in range(400)}},
    ),
    "schema: many properties by pattern": ("json", {"patternProperties": {f"^(a|b)*{i}.*$": {} for i in range(500)}}),
    "schema: another host": ("json", {"$ref": "http://169.254.169.254/latest/meta-data"}),
    "schema: a file": ("json", {"$ref": "file:///etc/passwd"}),
    "schema: over its size": ("json", {"enum": [f"value {i}" for i in range(9000)]}),
    "choices: over their size": ("choice", [f"{i}" * 100 for i in range(1024)]),
}

ALLOWED: dict[str, tuple[str, Any]] = {
    "regex: exponential if it were a backtracker": ("regex", "(a|a)*(a*)*b"),
    "regex: huge counts": ("regex", "((a{1,1000}){1,1000}){1,1000}"),
    "regex: at its size": ("regex", "a" * MAX_REGEX_BYTES),
    "lark: ambiguous": ("lark", 'start: s\ns: s s s | s s | "a" | \n'),
    "schema: recursive": (
        "json",
        {
            "$defs": {"t": {"type": "object", "properties": {"l": {"$ref": "#/$defs/t"}, "r": {"$ref": "#/$defs/t"}}}},
            "$ref": "#/$defs/t",
        },
    ),
    "schema: huge bounds": (
        "json",
        {"type": "array", "minItems": 10**8, "items": {"type": "string", "maxLength": 10**8}},
    ),
    "schema: 1000 properties": (
        "json",
        {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(1000)}},
    ),
    "schema: 90 levels": ("json", json.loads('{"type":"array","items":' * 90 + "{}" + "}" * 90)),
    "choices: 1024": ("choice", [f"{i * 7919}" for i in range(1024)]),
}


def wanted(kind: str, value: Any) -> WantedGrammar:
    match kind:
        case "json":
            spec = schema_grammar(value, kind)
        case "choice":
            spec = choice_grammar(value, kind)
        case _:
            spec = check_grammar(kind, value, kind)
    return WantedGrammar(spec, kind)


@pytest.mark.parametrize("name", REFUSED)
async def test_a_bomb_is_refused_and_the_next_grammar_is_not(shared_checks: GrammarCheck, name: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF)
    kind, value = REFUSED[name]
    with pytest.raises(BadRequest) as caught:
        await check(shared_checks, wanted(kind, value), "t")
    assert caught.value.param == kind
    assert len(caught.value.message) < 300
    assert "\n" not in caught.value.message
    after = resource.getrusage(resource.RUSAGE_SELF)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 2.0  # here, not in the sandbox
    assert after.ru_maxrss - before.ru_maxrss < 64 * 1024
    fresh = f"[a-z]{{3}}{list(REFUSED).index(name)}"  # no verdict is remembered
    await check(shared_checks, WantedGrammar(GrammarSpec(GrammarKind.REGEX, fresh), "regex"), "t")


@pytest.mark.parametrize("name", ALLOWED)
async def test_what_only_looks_like_a_bomb_is_taken(shared_checks: GrammarCheck, name: str) -> None:
    pid = shared_checks.sandbox.pid
    await check(shared_checks, wanted(*ALLOWED[name]), "t")
    assert shared_checks.sandbox.pid == pid is not None


async def test_the_event_loop_turns_while_a_bomb_burns(checks: GrammarCheck) -> None:
    """A divisor that takes for ever: the sandbox is killed for its CPU time."""
    bomb = asyncio.create_task(check(checks, wanted("json", {"type": "integer", "multipleOf": 999_983}), "t"))
    turns = 0
    while not bomb.done():
        await asyncio.sleep(0.001)
        turns += 1
    with pytest.raises(BadRequest, match=TOO_COMPLEX):
        bomb.result()
    assert turns > 100
    await check(checks, GOOD, "t")


async def test_a_verdict_is_remembered_so_one_bomb_burns_once(checks: GrammarCheck) -> None:
    bomb = wanted(*REFUSED["schema: references that overflow a stack"])
    for _ in range(3):
        with pytest.raises(BadRequest, match=TOO_COMPLEX):
            await check(checks, bomb, "t")
        assert checks.sandbox.pid is None, "the first one ended the process, and no request has needed another since"


async def test_a_process_that_others_end_says_nothing_about_the_grammar(checks: GrammarCheck) -> None:
    fresh = wanted("regex", "[a-f]{8}")
    assert checks.sandbox.pid is not None
    os.kill(checks.sandbox.pid, signal.SIGKILL)
    with pytest.raises(Overloaded):
        await check(checks, fresh, "t")
    await check(checks, fresh, "t")


async def test_a_machine_without_time_is_not_the_grammars_fault(
    checks: GrammarCheck, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid, fresh = checks.sandbox.pid, wanted("regex", "[a-f]{9}")
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    with monkeypatch.context() as patch:
        patch.setattr(grammar_sandbox, "TIMEOUT_S", 0.2)
        with pytest.raises(Overloaded):
            await check(checks, fresh, "t")
    await check(checks, fresh, "t")
    assert checks.sandbox.pid != pid


async def test_the_process_knows_no_secret_and_ends_with_the_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRATOS_GATEWAY_KEY_PEPPER", "pepper-of-the-test")
    checks = GrammarCheck(BASE_MODEL, VOCAB_SIZE, (0,))
    await check(checks, GOOD, "t")
    folder = Path(f"/proc/{checks.sandbox.pid}")
    assert b"pepper-of-the-test" not in (folder / "environ").read_bytes()
    checks.close()
    assert not os.path.exists(folder)  # noqa: ASYNC240, PTH110 - a file of /proc does not block


async def test_equal_grammars_are_tried_once_and_tenants_take_turns(
    checks: GrammarCheck, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []
    problem_of = checks.sandbox.problem_of
    monkeypatch.setattr(checks.sandbox, "problem_of", lambda spec: (tried.append(spec.text), problem_of(spec))[1])
    flood = [asyncio.create_task(check(checks, wanted("regex", f"a{{{i % 6}}}b"), "greedy")) for i in range(60)]
    await asyncio.sleep(0)
    await check(checks, wanted("regex", "modest"), "modest")
    assert tried.index("modest") <= 2
    await asyncio.gather(*flood)
    assert len(tried) == 7


async def test_what_nobody_waits_for_is_not_tried(checks: GrammarCheck, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    problem_of = checks.sandbox.problem_of
    monkeypatch.setattr(checks.sandbox, "problem_of", lambda spec: (tried.append(spec.text), problem_of(spec))[1])
    left = [asyncio.create_task(check(checks, wanted("regex", f"c{{{i}}}"), "t")) for i in range(1, 9)]
    await asyncio.sleep(0)
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    await check(checks, wanted("regex", "d"), "t")
    assert tried[-1] == "d"
    assert len(tried) <= 2


async def test_more_than_may_wait_are_turned_away(checks: GrammarCheck, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_check, "MAX_WAITING", 3)
    waiting = [asyncio.create_task(check(checks, wanted("regex", f"e{{{i}}}"), "t")) for i in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded):
        await check(checks, wanted("regex", "f"), "t")
    await asyncio.gather(*waiting)
    await check(checks, wanted("regex", "f"), "t")


def test_the_process_does_not_outlive_a_gateway_that_is_killed() -> None:
    code = (
        "import sys, time\nfrom pathlib import Path\n"
        "from stratos.core.requests.grammar import GrammarKind, GrammarSpec\n"
        "from stratos_gateway.models.grammar_sandbox import GrammarSandbox\n"
        f"box = GrammarSandbox(Path({str(BASE_MODEL)!r}), {VOCAB_SIZE}, (0,))\n"
        "assert box.problem_of(GrammarSpec(GrammarKind.REGEX, 'a')) == ''\n"
        "print(box.pid, flush=True)\ntime.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as gateway:
        assert gateway.stdout is not None
        watch = os.pidfd_open(int(gateway.stdout.readline()))
        gateway.kill()
    try:
        assert select.select([watch], [], [], 20.0)[0], "the process is still there"
    finally:
        os.close(watch)
