"""All points in one go: ``python -m tests.e2e.lanes``, which is ``make e2e``.

Points that leave nodes and the API server alone run side by side, in lanes; those that disturb them run after that, one
after the other. Each lane is a pytest of its own, whose words are in build/e2e/lane-NAME.log; all write one report.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.kube.cluster.images import provide_images
from tests.support.kube.cluster.settings import ClusterSettings
from tests.support.paths import ROOT

FOLDER = Path("tests/e2e")
BESIDE = {
    "scaling": ("point_1", "point_5", "point_3"),
    "versions": ("point_4_versions", "point_4_pods"),
    "models": ("point_12", "point_11", "point_14", "point_9", "point_8", "point_2"),
}
"""The longest first. Of owners of external metrics, and of the kind Model, a cluster has one: those are in one lane."""
ALONE = ("point_4", "point_6", "point_7", "point_10", "point_13", "short")
"""They take nodes or the API server away, or tell figures of a cluster with nothing else in it."""


def files(points: tuple[str, ...]) -> list[str]:
    """Their tests."""
    return [f"{FOLDER / f'test_{point}.py'}" for point in points]


def run_lane(name: str, points: tuple[str, ...], arguments: list[str]) -> int:
    """Exit code of its pytest, which had no test where the arguments choose none of it."""
    log, start = ROOT / "build" / "e2e" / f"lane-{name}.log", time.monotonic()
    command = [sys.executable, "-m", "pytest", "-m", "e2e", "-p", "no:cacheprovider", *files(points), *arguments]
    given = os.environ | {"E2E_IMAGES": "there"}
    with log.open("w") as out:
        done = subprocess.run(command, cwd=ROOT, env=given, stdout=out, stderr=subprocess.STDOUT, check=False)
    said = log.read_text().splitlines()
    summary = [line for line in said if line.startswith(("FAILED", "ERROR"))] + said[-1:]
    print(f"==> {name}, {time.monotonic() - start:.0f} s: {', '.join(points)}", *summary, sep="\n", flush=True)
    return 0 if done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED else done.returncode


def main(arguments: list[str]) -> int:
    """1 where a test failed; none is left out for that."""
    start = time.monotonic()
    (ROOT / "build" / "e2e").mkdir(parents=True, exist_ok=True)
    took = provide_images(ClusterSettings.from_environment())
    print(f"==> images: {took}", flush=True)
    with ThreadPoolExecutor(len(BESIDE)) as pool:
        ends = list(pool.map(lambda lane: run_lane(*lane, arguments), BESIDE.items()))
    ends.append(run_lane("alone", ALONE, arguments))
    print(f"==> all points: {time.monotonic() - start:.0f} s")
    return int(any(ends))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
