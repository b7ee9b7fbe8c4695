"""Every `stratos ...` of the documents is a command that there is, with flags that it has."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import pytest
from typer.main import get_command

from stratos.cli.main import app
from tests.unit.guards.test_tree import ROOT, documents

LEFT_OUT = {ROOT / "CHANGELOG.md"}
"""It tells of commands of its day."""
OF_OTHERS = {"--build-arg", "--prune", "--long", "--rehearse", "--top-p"}
"""Flags that stand alone, of docker, kubectl and scripts."""
_BLOCK = re.compile(r"```(?:bash|sh|console)?\n(.*?)```", re.DOTALL)
_SPAN = re.compile(r"`([^`\n]+)`")
_BEGIN = re.compile(
    r"(?:^ *|\$ |\$\(|&& |\| |-- |bin/|sh -c '|run: |[A-Z_]+=\S+ )stratos (?P<words>[^\n]*)", re.MULTILINE
)
_END = re.compile(r"\s(?:#|\||&&|>|&$|2>)|[)`;]")
_FLAG = re.compile(r"--[a-z][a-z0-9-]*")


def commands(text: str) -> list[list[str]]:
    """Words behind `stratos` in code blocks and spans, each up to the end of its command."""
    code = "\n".join([*_BLOCK.findall(text), *_SPAN.findall(_BLOCK.sub("", text))]).replace("\\\n", " ")
    return [_END.split(found["words"], maxsplit=1)[0].split() for found in _BEGIN.finditer(code)]


def problem(words: list[str]) -> str | None:
    """What is wrong with a command; a group may stand alone, and words in capitals are no names."""
    command, given = _root(), []
    for place, word in enumerate(words):
        if hasattr(command, "commands"):
            if word in command.commands:
                command = command.commands[word]
            elif re.fullmatch(r"[a-z][a-z-]*", word):
                return f"there is no stratos {' '.join(words[: place + 1])}"
        elif found := re.match(r"\[?(--[a-z][a-z0-9-]*)", word):
            given.append(found[1])
    if hasattr(command, "commands"):
        return None
    unknown = [flag for flag in given if flag not in flags(command) | {"--help"}]
    return f"stratos {' '.join(words)} has no {unknown[0]}" if unknown else None


@cache
def flags(command: Any = None) -> frozenset[str]:
    """Flags of a command and of all below it; of `stratos` where none is given."""
    one = command or _root()
    own = frozenset(opt for param in one.params for opt in (*param.opts, *param.secondary_opts))
    return own.union(*(flags(below) for below in getattr(one, "commands", {}).values()))


@cache
def _root() -> Any:
    return get_command(app)


def test_every_command_of_the_documents_is_there_with_its_flags() -> None:
    found = {path: commands(path.read_text(encoding="utf-8")) for path in documents() if path not in LEFT_OUT}
    assert sum(map(len, found.values())) > 150
    wrong = [f"{path.relative_to(ROOT)}: {text}" for path, one in found.items() for text in map(problem, one) if text]
    assert wrong == [], "\n".join(wrong)


def test_every_flag_that_stands_alone_is_one_of_some_command() -> None:
    """The defect: a setting of workers was written as a flag."""
    told = {
        found[0]: str(path.relative_to(ROOT))
        for path in documents()
        if path not in LEFT_OUT
        for span in _SPAN.findall(path.read_text(encoding="utf-8"))
        if (found := _FLAG.match(span))
    }
    assert len(told) > 80
    assert {flag: path for flag, path in told.items() if flag not in flags() | OF_OTHERS} == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("`stratos certificates show`", "no stratos certificates show"),
        ("```bash\nKEY=$(stratos keys create --plane local)\n```", "has no --plane"),
        ("```bash\nstratos admin backup \\\n  --hold 3 # keep\n```", "has no --hold"),
        ("`stratos keys`, `stratos up --no-fork-server`, `kubectl --namespace stratos get pods`", None),
    ],
)
def test_what_is_not_there_is_found(text: str, said: str | None) -> None:
    found = [text for text in map(problem, commands(text)) if text]
    assert (said is None and found == []) or (said is not None and len(found) == 1 and said in found[0])
