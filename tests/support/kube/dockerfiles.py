"""Dockerfiles as lists of instructions, grouped by stage."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction: ``word`` in capitals, the rest with its continued lines joined."""

    word: str
    value: str


@dataclass(frozen=True, slots=True)
class Stage:
    """From one FROM to the next."""

    source: str
    name: str
    instructions: tuple[Instruction, ...]

    def values(self, word: str) -> list[str]:
        return [instruction.value for instruction in self.instructions if instruction.word == word]

    def environment(self) -> dict[str, str]:
        return dict(pair.split("=", 1) for value in self.values("ENV") for pair in value.split())

    def labels(self) -> dict[str, str]:
        pairs = re.findall(r'([\w.]+)="([^"]*)"', " ".join(self.values("LABEL")))
        return dict(pairs)


def read_instructions(text: str) -> list[Instruction]:
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [Instruction(*line.split(maxsplit=1)) for line in joined.splitlines()]


def read_image(path: Path, build_args: Mapping[str, str]) -> Stage:
    """The last stage, after those of the same file that it stands on; build arguments choose them."""
    stages = {stage.name: stage for stage in read_stages(path)}
    last = stages[""]
    while (source := filled(last.source, build_args)) in stages:
        below = stages[source]
        last = Stage(below.source, "", (*below.instructions, *last.instructions))
    return last


def filled(text: str, build_args: Mapping[str, str]) -> str:
    """A text with the build arguments that are given in place of their names."""
    return re.sub(r"\$\{(\w+)\}", lambda found: build_args.get(found[1], found[0]), text)


def read_stages(path: Path) -> list[Stage]:
    stages: list[Stage] = []
    for instruction in read_instructions(path.read_text()):
        if instruction.word == "FROM":
            source, _, name = instruction.value.partition(" AS ")
            stages.append(Stage(source, name, ()))
        elif stages:
            last = stages[-1]
            stages[-1] = Stage(last.source, last.name, (*last.instructions, instruction))
    return stages
