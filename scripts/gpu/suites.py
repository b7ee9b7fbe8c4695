"""The tests, as several processes of pytest beside each other: most of their time goes into compiling kernels.

The project's configuration of pytest and its conftest files need packages that a GPU machine may lack, so neither is
used.  Results are read from what pytest prints line by line, so a suite that is stopped keeps what it had.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from scripts.gpu.rig import Rig

ROOT = Path(__file__).resolve().parents[2]
MODELS = "tests/gpu/test_models_on_gpu.py"
KERNEL_UNITS, RUNNER_UNITS = "tests/unit/engine/triton_kernels", "tests/unit/engine/runner/cuda"
SUITES: dict[str, list[str]] = {
    "kernels": ["tests/gpu/test_kernels_on_gpu.py", "tests/gpu/test_host_memory_on_gpu.py"],
    "base_model": [MODELS, "-k", "not transformers or base"],
    "llama_and_mistral": [MODELS, "-k", "greedy_tokens and (llama or mistral)"],
    "qwen2": [MODELS, "-k", "greedy_tokens and qwen2"],
    "qwen3": [MODELS, "-k", "greedy_tokens and qwen3 and not moe"],
    "experts": [MODELS, "-k", "greedy_tokens and (mixtral or moe)"],
    "nccl": ["tests/gpu/test_nccl_on_gpu.py"],
    "ipc": ["tests/gpu/test_ipc_on_gpu.py"],
    "units_attention": [f"{KERNEL_UNITS}/test_{name}.py" for name in ("attention", "layers", "fp8_kv")],
    "units_sampling": [f"{KERNEL_UNITS}/test_sampling.py", f"{KERNEL_UNITS}/test_split_sampling.py"],
    "units_grouped": [f"{KERNEL_UNITS}/test_grouped_{name}.py" for name in ("lora", "experts")],
    "units_products": [f"{KERNEL_UNITS}/test_few_rows.py"],
    "units_codes": [f"{KERNEL_UNITS}/test_codes.py", f"{RUNNER_UNITS}/test_quantised_gpu.py"],
    "units_copies": [f"{KERNEL_UNITS}/test_kv_copies.py"],
    "units_runner": [f"{RUNNER_UNITS}/test_{name}.py" for name in ("gpu_runner", "device_sleep")],
    "units_steps": [f"{RUNNER_UNITS}/test_{name}.py" for name in ("decode_inputs", "cut_kv", "exact_gpu")],
}
REHEARSED: dict[str, list[str]] = {
    "kernels": SUITES["kernels"][:1],
    "passing": [f"{RUNNER_UNITS}/test_gpu_runner.py", "-k", "sizes_grow"],
    "missing": ["tests/gpu/no_such_file.py"],
}
"""Without a GPU: one that skips all, one that passes, one that cannot be run."""
POLL_S = 0.2
VERDICT = re.compile(r"^(\S+::.+?) (PASSED|FAILED|ERROR|SKIPPED|XFAIL)\b", re.MULTILINE)
REASON = re.compile(r"^(?:FAILED|ERROR) (\S+)(?: - (.*))?$", re.MULTILINE)
NO_TEST_RAN, WORDS = 5, 1500


@dataclass
class _Suite:
    name: str
    process: subprocess.Popen[str]
    log: Path
    stream: IO[str]
    began_s: float = field(default_factory=time.monotonic)


def run(rig: Rig) -> None:
    """Section ``tests``."""
    with tempfile.TemporaryDirectory() as folder:
        suites = REHEARSED if rig.is_rehearsal else SUITES
        running = [_started(name, selection, Path(folder)) for name, selection in suites.items()]
        while running and time.monotonic() < rig.deadline_s:
            for suite in [s for s in running if s.process.poll() is not None]:
                running.remove(suite)
                rig.record(suite.name, _result(suite, must_run=not rig.is_rehearsal))
            time.sleep(POLL_S)
        for suite in running:
            suite.process.kill()
            suite.process.wait()
            rig.record(suite.name, {**_result(suite, must_run=False), "error": "stopped: no time left"})


def _started(name: str, selection: list[str], folder: Path) -> _Suite:
    log = folder / f"{name}.txt"
    stream = log.open("w")
    command = [
        sys.executable, "-m", "pytest", "-v", "-rfEs", "--tb=short", "--color=no", "--noconftest",
        "-p", "no:cacheprovider", "-c", "tests/gpu/pytest.ini", f"--rootdir={ROOT}", *selection,
    ]  # fmt: skip
    process = subprocess.Popen(command, cwd=ROOT, stdout=stream, stderr=subprocess.STDOUT, text=True)
    return _Suite(name, process, log, stream)


def _result(suite: _Suite, *, must_run: bool) -> dict[str, Any]:
    """Counts, and the names of what failed with its reason; ``error`` where anything did, or nothing ran that must."""
    suite.stream.close()
    text = suite.log.read_text(encoding="utf-8", errors="replace")
    verdicts = [verdict for _, verdict in VERDICT.findall(text)]
    counts = {verdict.lower(): verdicts.count(verdict) for verdict in sorted(set(verdicts))}
    failed = {test: reason[:400] for test, reason in REASON.findall(text)}
    result = {"took_s": round(time.monotonic() - suite.began_s, 1), "counts": counts}
    code = suite.process.returncode
    if failed:
        result |= {"error": f"{len(failed)} failed", "failed": failed, "last_words": text[-WORDS:]}
    elif code not in (0, NO_TEST_RAN) or not verdicts:
        result |= {"error": f"pytest ended with {code} after {len(verdicts)} tests", "last_words": text[-WORDS:]}
    elif must_run and not counts.get("passed"):
        result |= {"error": f"none of its {len(verdicts)} tests ran", "last_words": text[-WORDS:]}
    return result
