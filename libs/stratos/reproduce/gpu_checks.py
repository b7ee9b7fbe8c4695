"""Reports of ``scripts/gpu_check.py``, from which the rows of a GPU are made: one of here and now, or a committed one.

A committed report, ``benchmarks/results/gpu-*.json``, answers on machines without a GPU; the row names its hardware.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stratos.reproduce.catalogue import ROWS, ReproducedRow

_ROOT = Path(__file__).resolve().parents[3]
COMMITTED = _ROOT / "benchmarks" / "results"
MODEL = "the Llama-3.1-8B shape with random weights, bfloat16"
"""What its sections compute with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuCheck:
    """One report: where it was made, and what its sections found."""

    name: str
    """File name; empty for one of here and now."""
    environment: Mapping[str, Any]
    sections: Mapping[str, Mapping[str, Any]]

    @property
    def device(self) -> str:
        """Name of the GPU, as CUDA has it."""
        return str(self.environment["device"])

    def has(self, sections: Sequence[str]) -> bool:
        """Each of these sections ran to its end."""
        return all(self.sections.get(name, {}).get("status") == "ok" for name in sections)

    def results(self, section: str) -> Mapping[str, Any]:
        """Records of a section, by name."""
        found: Mapping[str, Any] = self.sections[section]["results"]
        return found

    def duration_s(self, sections: Sequence[str]) -> float:
        """Seconds of these sections, with their start."""
        return round(sum(float(self.sections[name]["took_s"]) for name in sections), 1)

    def where(self) -> dict[str, Any]:
        """The environment of a row's document."""
        kept = ("driver", "cuda", "torch", "triton", "python", "utc")
        commit = f"{self.environment['commit']}{'+' if self.environment.get('is_changed') else ''}"
        found = {key: self.environment[key] for key in kept if key in self.environment}
        return {"gpu": self.device, "commit": commit, "file": self.name, **found}


def read_check(path: Path) -> GpuCheck:
    """A report's file."""
    content = json.loads(path.read_text(encoding="utf-8"))
    return GpuCheck(name=path.name, environment=content["environment"], sections=content["sections"])


def run_check(sections: Sequence[str]) -> GpuCheck:
    """Ask the GPU of this machine, within the check's own time limits.

    Raises:
        RuntimeError: there is none, or a section failed; the check's own words are on stderr.
    """
    script = _ROOT / "scripts" / "gpu_check.py"
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "gpu.json")
        command = [sys.executable, str(script), "--only", ",".join(sections), "--out", str(out)]
        done = subprocess.run(command, cwd=_ROOT, stdout=sys.stderr, check=False)
        if done.returncode:
            raise RuntimeError(f"{script.name} ended with {done.returncode}")
        return replace(read_check(out), name="")


def committed_check(sections: Sequence[str], folder: Path = COMMITTED) -> GpuCheck | None:
    """The newest committed report that has these sections."""
    found = [check for path in folder.glob("gpu-*.json") if (check := read_check(path)).has(sections)]
    return max(found, key=lambda check: (str(check.environment["utc"]), check.name), default=None)


def committed_checks(folder: Path = COMMITTED) -> dict[ReproducedRow, GpuCheck]:
    """The newest committed report for each row of a GPU that has one."""
    pairs = ((row, committed_check(row.sections, folder)) for row in ROWS if row.needs_gpu)
    return {row: check for row, check in pairs if check is not None}
