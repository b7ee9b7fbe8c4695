"""Conditions of a row's run: which form, which seed, which model."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


class RowForm(StrEnum):
    """How much of a row runs."""

    SMOKE = "smoke"
    """Seconds: the code runs; its figures are for no report."""
    SHORT = "short"
    """All rows within ten minutes on two cores, with the shipped model."""
    FULL = "full"
    """All rows within an hour and a half, with a random model of 213 M parameters where size matters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowConditions:
    """Form, seed, model and room of a row."""

    form: RowForm = RowForm.SHORT
    seed: int = 0
    model: Path = Path("models/base")
    """Folder of the shipped model; its adapters are beside it."""
    threads: int = 1
    """Threads of an engine."""
    folder: Path = Path("build/reproduce/material")
    """Where rows keep what they make: models, adapters."""

    def sized(self, *, smoke: T, short: T, full: T) -> T:
        """The one of the form."""
        return {RowForm.SMOKE: smoke, RowForm.SHORT: short, RowForm.FULL: full}[self.form]
