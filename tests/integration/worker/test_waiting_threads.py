"""Threads of a team do not look for one another for long: a process that loads an engine, as a worker does."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from stratos.engine.native.looks import FALLBACK_LOOKS, MAX_SPIN_NS, bounded_looks
from tests.support.paths import ROOT
from tests.support.reference.native_kernels import NATIVE_SETS

ENGINE = f"""
from pathlib import Path
import stratos_decode_worker.__main__
from stratos.engine.settings import RunnerConfig
from stratos.worker.engine_client.factory import make_engine
from stratos.worker.settings import WorkerSettings
runner = RunnerConfig(model_path=Path({str(ROOT / "models" / "draft")!r}), num_threads=1, kv_pool_bytes=16 << 20)
make_engine(WorkerSettings(runner=runner, device="cpu"))
"""
WAITING = (
    ENGINE
    + """
import os, time, torch
from pathlib import Path
torch.set_num_threads(2)
x = torch.ones(1 << 16)
def used():
    tasks = [path for path in Path("/proc/self/task").iterdir() if path.name != str(os.getpid())]
    return sum(int((path / "schedstat").read_text().split()[0]) for path in tasks)
found = []
for _ in range(40):
    begin = used()
    x.add_(1)
    time.sleep(0.003)
    found.append(used() - begin)
print("cpu_ns", min(found))  # work of some microseconds included; others on this core make it longer
"""
)


def run(program: str, **told: str) -> str:
    env = {name: content for name, content in os.environ.items() if not name.startswith(("GOMP_", "OMP_"))}
    env |= {"OMP_DISPLAY_ENV": "VERBOSE", **told}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
    return done.stderr + done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("told", "spins"), [({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "PASSIVE"}, "0")])
def test_what_an_operator_says_holds(told: dict[str, str], spins: str) -> None:
    assert set(re.findall(r"GOMP_SPINCOUNT = '(\d+)'", run(ENGINE, **told))) == {spins}


@pytest.mark.promise
@pytest.mark.skipif(not NATIVE_SETS, reason="written for AVX2 and AVX-512")
def test_a_waiting_thread_looks_for_at_most_50_us_on_this_processor() -> None:
    used = float(re.findall(r"cpu_ns (\S+)", run(WAITING))[0])
    assert 0.5 * MAX_SPIN_NS < used < 1.4 * MAX_SPIN_NS


def test_without_kernels_it_is_few_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stratos.engine.native.looks._kernels", lambda: None)
    assert bounded_looks() == FALLBACK_LOOKS
