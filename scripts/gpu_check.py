"""Everything that a GPU is asked, in one command: the GPU tests, then measurements against the roofline.

Each section runs in a process of its own under its own time limit, so one that fails, or takes the device down, says
why and the others go on.  Nothing is installed and nothing is fetched.  Exit code 0: every section ended and the
tests passed; 1: something failed; 2: there is no GPU.

Example:
    python3 scripts/gpu_check.py            # results go to benchmarks/results/gpu-<name of the GPU>.json
    python3 scripts/gpu_check.py --only tests,decode
    python3 scripts/gpu_check.py --rehearse # on a CPU, in tiny shapes: proves that the sections run
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Section:
    """Work of one process."""

    module: str
    function: str
    limit_s: int
    topic: str


SECTIONS = {
    "tests": Section("suites", "run", 230, "kernels, runner and models of every family against references"),
    "decode": Section("steps", "decode", 110, "decode steps of the 8B shape against the roofline, by batch"),
    "ablations": Section("steps", "ablations", 130, "the same with each switch off"),
    "adapters": Section("steps", "adapters", 70, "decode steps with 0 to 32 adapters, grouped and one by one"),
    "attention": Section("attention", "run", 100, "the attention kernel alone: GB/s, TFLOP/s, other program shapes"),
    "sampling": Section("sampling", "run", 90, "sampling on the device against logits to the host and a sort there"),
    "prefill": Section("steps", "prefill", 60, "prompts of the 8B shape"),
    "sleep": Section("steps", "sleep", 60, "weights and pages to host memory and back, against the copy of a tensor"),
    "handoff": Section(
        "handoff", "run", 60, "KV into the pages of another process; what of it a first token waits for"
    ),
    "products": Section("products", "run", 60, "matrix products of few rows against the copy bandwidth"),
    "codes": Section("codes", "run", 60, "products of weights that stay codes, against those of bfloat16"),
    "platform": Section("platform", "run", 240, "the whole platform on one GPU: a killed worker, throughput by HTTP"),
}
"""In the order in which they run: what matters most comes first, should time run out."""
TOTAL_LIMIT_S = 560
MARGIN_S = 12
"""A section stops by itself so long before it is stopped."""
LAST_WORDS = 2500
NOTHING_RAN = "not run"
"""Status of a section that has measured nothing, as where a package is missing."""
NEEDED = ("torch", "triton", "numpy", "safetensors", "annotated_types")
HELPFUL = ("transformers", "pytest")


def main() -> int:
    """Parse arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="name sections, and end")
    parser.add_argument("--only", help="comma-separated sections; default: all")
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    parser.add_argument("--commit", default="", help="of this checkout, where git is not there to say it")
    parser.add_argument("--section", choices=SECTIONS, help="run one section in this process (used internally)")
    parser.add_argument("--limit-s", type=float, default=600.0, help="seconds that --section may take")
    parser.add_argument(
        "--rehearse", action="store_true", help="run the sections on the CPU in tiny shapes: proves that they run"
    )
    arguments = parser.parse_args()
    _extend_path()
    if arguments.list:
        print(_listed())
        return 0
    if arguments.section:
        return _run_section(arguments)
    reason = None if arguments.rehearse else _why_no_gpu()
    if reason:
        print(f"gpu_check: no GPU to check: {reason}", file=sys.stderr)
        return 2
    return _run_all(arguments)


def _listed() -> str:
    return "\n".join(f"{name:10} up to {s.limit_s:3} s  {s.topic}" for name, s in SECTIONS.items())


def _extend_path() -> None:
    """Import from this checkout, installed or not, here and in child processes."""
    folders = [ROOT, ROOT / "libs"]
    paths = [str(folder) for folder in folders if folder.is_dir()]
    sys.path[:0] = paths
    os.environ["PYTHONPATH"] = os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")])


def _why_no_gpu() -> str | None:
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    import torch

    return None if torch.cuda.is_available() else "torch finds no CUDA device"


def _run_section(arguments: argparse.Namespace) -> int:
    section = SECTIONS[arguments.section]
    if arguments.rehearse:
        _interpret_kernels()
    import torch

    from scripts.gpu.rig import Rig

    rig = Rig(arguments.out, arguments.rehearse, time.monotonic() + arguments.limit_s)
    with torch.inference_mode():
        getattr(importlib.import_module(f"scripts.gpu.{section.module}"), section.function)(rig)
    return 0


def _interpret_kernels() -> None:
    os.environ["TRITON_INTERPRET"] = "1"  # also where there is a GPU
    import tests.support.reference.triton_interpreter as triton_interpreter  # noqa: F401  # before anything imports Triton
    from stratos.engine.attention import triton_paged
    from stratos.engine.triton_kernels import sampling, split_sampling

    triton_paged.TARGET_PROGRAMS = 4  # they run one by one
    sampling.VOCAB_BLOCK = sampling.SEARCH_BLOCK = 128
    split_sampling.PART = split_sampling.BLOCK = split_sampling.NOISE_BLOCK = split_sampling.SEARCH_BLOCK = 128


def _run_all(arguments: argparse.Namespace) -> int:
    begin = time.monotonic()
    wanted = arguments.only.split(",") if arguments.only else list(SECTIONS)
    report: dict[str, Any] = {"environment": _environment(arguments.rehearse, arguments.commit), "sections": {}}
    out = arguments.out or ROOT / "benchmarks" / "results" / f"gpu-{_slug(report['environment']['device'])}.json"
    for name in wanted:
        left = TOTAL_LIMIT_S - (time.monotonic() - begin)
        print(f"==> {name} ({left:.0f} s left)", flush=True)
        report["sections"][name] = _outcome(name, left, arguments.rehearse)
        report["total_s"] = round(time.monotonic() - begin, 1)
        out.write_text(json.dumps(report, indent=2) + "\n")
    sections = report["sections"]
    failed = {name: one["status"] for name, one in sections.items() if one["status"] not in ("ok", NOTHING_RAN)}
    left_out = {name: one["not_run"] for name, one in sections.items() if "not_run" in one}
    print(f"==> {out}; failed: {failed or 'none'}; not run: {left_out or 'none'}", flush=True)
    return 1 if failed else 0


def _outcome(name: str, left_s: float, is_rehearsal: bool) -> dict[str, Any]:
    """Run one section in a process; what it had recorded counts even if it fails."""
    if name not in SECTIONS:
        return {"status": f"no such section; there are {', '.join(SECTIONS)}"}
    limit = min(left_s, SECTIONS[name].limit_s * (3 if is_rehearsal else 1))
    if limit < 2 * MARGIN_S:
        return {"status": "no time left"}
    with tempfile.TemporaryDirectory() as folder:
        out, log = Path(folder) / "section.json", Path(folder) / "log.txt"
        command = [sys.executable, __file__, "--section", name, "--out", str(out), "--limit-s", str(limit - MARGIN_S)]
        begin = time.monotonic()
        status = _status(command + ["--rehearse"] * is_rehearsal, limit, log)
        outcome: dict[str, Any] = {"status": status, "took_s": round(time.monotonic() - begin, 1)}
        outcome["results"] = json.loads(out.read_text()) if out.exists() else {}
        text = log.read_text(encoding="utf-8", errors="replace")
    outcome |= judged(status, outcome["results"])
    print(text if outcome["status"] == "ok" else text[-4 * LAST_WORDS :], flush=True)
    return outcome if status == "ok" else {**outcome, "last_words": text[-LAST_WORDS:]}


def judged(status: str, results: dict[str, Any]) -> dict[str, Any]:
    """Status of a section whose process ended with ``status``, and which of its parts did not run, if any."""
    failed, left_out = (
        [key for key, value in results.items() if isinstance(value, dict) and word in value]
        for word in ("error", "skipped")
    )
    if status == "ok" and failed:
        status = f"failed in part: {', '.join(failed)}"
    elif status == "ok" and left_out and len(left_out) == len(results):
        status = NOTHING_RAN
    return {"status": status, "not_run": left_out} if left_out else {"status": status}


def _status(command: list[str], limit_s: float, log: Path) -> str:
    with log.open("w") as stream:
        process = subprocess.Popen(command, cwd=ROOT, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)  # its children, too
            process.wait()
            return f"stopped after {limit_s:.0f} s"
    return "ok" if code == 0 else f"exit code {code}"


def _environment(is_rehearsal: bool, commit: str) -> dict[str, Any]:
    import torch

    found: dict[str, Any] = {
        "device": "rehearsal" if is_rehearsal else torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "commit": commit or _git("rev-parse", "HEAD") or "unknown",
        "is_changed": bool(_git("status", "--porcelain", "--untracked-files=no")),
        "missing": [name for name in (*NEEDED, *HELPFUL) if importlib.util.find_spec(name) is None],
        "utc": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    found |= {name: _version(name) for name in ("triton", "transformers", "numpy") if importlib.util.find_spec(name)}
    if not is_rehearsal:
        properties = torch.cuda.get_device_properties(0)
        found |= {
            "cuda": torch.version.cuda,
            "driver": _driver(),
            "memory_gib": round(properties.total_memory / 2**30, 1),
            "multiprocessors": properties.multi_processor_count,
        }
    return found


def _version(name: str) -> str:
    """Version of a module that is there; an image may have installed it under another name than its own."""
    try:
        return version(name)
    except PackageNotFoundError:
        return str(getattr(importlib.import_module(name), "__version__", "unknown"))


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip()


def _driver() -> str:
    try:
        command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return done.stdout.strip() or "unknown"


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


if __name__ == "__main__":
    sys.exit(main())
