"""Run the tests again and again, idle and beside busy loops, and write a table of what passed.

    python -m scripts.green_table --idle 3 --loaded 2 --files 5 --out build/green

runs ``make test`` so often, and then every file of ``tests/integration`` that starts processes; ``--jobs 2`` runs two
files at a time, each beside the other and the loops. One loop keeps each core busy at the tests' own priority.
``build/green.md`` and ``build/green.json`` are written after each run, so a table
that is stopped still tells. The exit code is 1 where anything failed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.support.process_starts import files_that_start_processes

ROOT = Path(__file__).resolve().parents[1]
NOTHING_SELECTED = 5
"""Exit code of pytest for a file whose tests all belong to other groups."""
BUSY = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    sum(range(1_000_000))\n"
"""Ends with its parent, however that ends."""
MAX_LINES = 3_000
"""Of the output of a run that is not green; they are printed."""
_COUNT = re.compile(r"(\d+) (passed|failed|errors?|skipped)\b")
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
_SUMMARY = re.compile(r"^=*\s*((?:\d+ \w+(?:, )?)+) in [\d.]+s.*$", re.MULTILINE)


@dataclass(frozen=True)
class Run:
    """One line of the table."""

    run: str
    load: str
    passed: int
    skipped: int
    failed: list[str]
    """Tests that failed in any call of pytest; where the exit code is 0, they passed when they were repeated."""
    exit_code: int
    seconds: float
    cpu_seconds: float
    """User and system time of the run's own processes."""

    @property
    def is_green(self) -> bool:
        return self.exit_code in (0, NOTHING_SELECTED)


def main() -> int:
    """Run all that is asked for."""
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    table = _Table(options.out)
    for number in range(options.idle):
        table.add(measure(f"{options.test} #{number + 1}", options.test, num_loops=0))
    for number in range(options.loaded):
        table.add(measure(f"{options.test} #{number + 1}", options.test, num_loops=options.loops))
    if options.files:
        paths = options.only or [str(path.relative_to(ROOT)) for path in files_that_start_processes(ROOT)]
        again = [(path, number) for number in range(options.files) for path in paths]
        with busy(options.loops), ThreadPoolExecutor(options.jobs) as pool:
            load = f"{options.loops} busy loops" + (f", {options.jobs} files at once" if options.jobs > 1 else "")
            for one in pool.map(lambda item: _measure_file(item[0], item[1], load), again):
                table.add(one)
    return table.close()


def _measure_file(path: str, number: int, load: str) -> Run:
    command = f"{shlex.quote(sys.executable)} -m pytest -q -n 0 {shlex.quote(path)}"
    return _measure(f"{path} #{number + 1}", command, load)


def measure(name: str, command: str, *, num_loops: int) -> Run:
    """One run of a command beside so many busy loops."""
    with busy(num_loops):
        return _measure(name, command, f"{num_loops} busy loops" if num_loops else "idle")


def _measure(name: str, command: str, load: str) -> Run:
    began_s = time.monotonic()
    code, output, cpu_s = run(command)
    found = counts(output)
    done = Run(
        run=name,
        load=load,
        passed=found.get("passed", 0),
        skipped=found.get("skipped", 0),
        failed=sorted(set(_FAILED.findall(output))),
        exit_code=code,
        seconds=round(time.monotonic() - began_s, 1),
        cpu_seconds=round(cpu_s, 1),
    )
    if not done.is_green:
        print("\n".join(output.splitlines()[-MAX_LINES:]), flush=True)
    return done


def run(command: str) -> tuple[int, str, float]:
    """Exit code, output and CPU seconds of a command; its processes end with this one."""
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryFile() as file:
        process = subprocess.Popen(
            command, shell=True, cwd=ROOT, env=env, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            _, status, usage = os.wait4(process.pid, 0)
        except BaseException:
            os.killpg(process.pid, signal.SIGTERM)
            raise
        process.returncode = os.waitstatus_to_exitcode(status)
        file.seek(0)
        return process.returncode, file.read().decode(errors="replace"), usage.ru_utime + usage.ru_stime


def counts(output: str) -> dict[str, int]:
    """Sums over all summaries of pytest in an output."""
    found: dict[str, int] = {}
    for summary in _SUMMARY.findall(output):
        for number, what in _COUNT.findall(summary):
            found[what] = found.get(what, 0) + int(number)
    return found


@contextmanager
def busy(num_loops: int) -> Iterator[None]:
    """So many processes that compute for as long as the block runs."""
    loops = [subprocess.Popen([sys.executable, "-c", BUSY], start_new_session=True) for _ in range(num_loops)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
        for loop in loops:
            loop.wait()


class _Table:
    """Lines so far, on disk after each."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._runs: list[Run] = []
        commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
        self._facts = {
            "commit": commit.stdout.strip(),
            "cores": len(os.sched_getaffinity(0)),
            "machine": _processor(),
            "begun": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        }
        out.parent.mkdir(parents=True, exist_ok=True)
        self._write("running")

    def add(self, one: Run) -> None:
        self._runs.append(one)
        self._write("running")
        print(_row(one), flush=True)

    def close(self) -> int:
        self._write("complete")
        return 0 if all(one.is_green for one in self._runs) else 1

    def _write(self, state: str) -> None:
        facts = {**self._facts, "state": state}
        content = {**facts, "runs": [asdict(one) for one in self._runs]}
        _replace(self._out.with_suffix(".json"), json.dumps(content, indent=1) + "\n")
        _replace(self._out.with_suffix(".md"), markdown(facts, self._runs))


def markdown(facts: dict[str, object], runs: Sequence[Run]) -> str:
    """The table for people: totals first, then every run."""
    num_green = sum(one.is_green for one in runs)
    head = "\n".join(f"- {name}: {value}" for name, value in facts.items())
    rows = "\n".join(_row(one) for one in runs)
    columns = "| run | load | passed | skipped | failed | exit | seconds | CPU s |\n|---|---|---|---|---|---|---|---|"
    return f"# Runs of the tests\n\n{head}\n- green: {num_green} of {len(runs)} runs\n\n{columns}\n{rows}\n"


def _row(one: Run) -> str:
    failed = "<br>".join(one.failed) or "0"
    cells = (one.run, one.load, one.passed, one.skipped, failed, one.exit_code, one.seconds, one.cpu_seconds)
    return f"| {' | '.join(map(str, cells))} |"


def _replace(path: Path, text: str) -> None:
    staged = path.with_name(path.name + ".new")
    staged.write_text(text, encoding="utf-8")
    staged.replace(path)


def _processor() -> str:
    names = re.findall(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    return names[0] if names else platform.machine()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--idle", type=int, default=3, help="runs of the tests on the idle machine")
    parser.add_argument("--loaded", type=int, default=2, help="runs beside busy loops")
    parser.add_argument("--files", type=int, default=5, help="runs of each file that starts processes, beside them")
    parser.add_argument(
        "--loops", type=int, default=len(os.sched_getaffinity(0)), help="busy loops; default: one a core"
    )
    parser.add_argument("--jobs", type=int, default=1, help="files at a time")
    parser.add_argument("--test", default="make test", help="command of a whole run")
    parser.add_argument("--only", nargs="*", default=[], help="files instead of all that start processes")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "green", help="path of both files, without suffix")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
