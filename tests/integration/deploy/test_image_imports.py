"""What runs in an image needs no package that its image has not: its modules are imported with all others hidden.

Images are built rarely, and an import that slips into a common module breaks those that lack its package.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from deploy.images.requirements import requirements
from tests.support.kube.dockerfiles import read_image
from tests.support.paths import ROOT
from tests.support.waiting import LIMIT_S

DOCKERFILE = ROOT / "deploy" / "images" / "service.Dockerfile"
RUNS = {
    "gateway": ["stratos_gateway.__main__"],
    "router": ["stratos_router.__main__"],
    "lora_registry": ["stratos_lora_registry.__main__", "stratos.cli.main", "stratos.cli.commands.stores.admin"],
    "worker": ["stratos_decode_worker.__main__", "stratos_prefill_worker.__main__", "stratos.quality.expected"],
    "autoscaler": ["stratos_autoscaler.__main__", "kubernetes.aio.client.api_client", "kubernetes.aio.watch"],
}
PROGRAM = """
import importlib, importlib.abc, sys
hidden = set(sys.argv[1].split(","))
class Hider(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in hidden:
            raise ModuleNotFoundError(f"{name} is not in the image", name=name)
sys.meta_path.insert(0, Hider())
for name in sys.argv[2:]:
    importlib.import_module(name)
"""


def installed(extra: str) -> set[str]:
    """Distributions that an image with an extra has, their own dependencies included."""
    found, seen = set[str](), set[str]()
    waiting = [Requirement(text) for text in requirements([extra, "otlp"], ROOT / "pyproject.toml")]
    while waiting:
        wanted = waiting.pop()
        if str(wanted) in seen:
            continue
        seen.add(str(wanted))
        found.add(_key(wanted.name))
        inner = [Requirement(text) for text in _requires(wanted.name)]
        extras = wanted.extras or {""}
        waiting += [r for r in inner if r.marker is None or any(r.marker.evaluate({"extra": e}) for e in extras)]
    return found


def _requires(name: str) -> list[str]:
    try:
        return requires(name) or []
    except PackageNotFoundError:
        return []


def _key(name: str) -> str:
    return name.lower().replace("_", "-")


@pytest.mark.parametrize("service", RUNS)
@pytest.mark.slow
def test_a_service_starts_with_the_packages_of_its_image(service: str) -> None:
    kept = installed(service)
    hidden = [
        module for module, owners in packages_distributions().items() if not {_key(owner) for owner in owners} & kept
    ]
    assert {"pytest", "redis" if service == "worker" else "torch"} <= set(hidden), "the hiding works"
    command = [sys.executable, "-c", PROGRAM, ",".join(hidden), *RUNS[service]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_commands_of_dockerfiles_import_what_there_is() -> None:
    stage = read_image(DOCKERFILE, {"SERVICE": "lora_registry"})
    (check,) = [text for text in stage.values("RUN") if "stratos.cli" in text]
    done = subprocess.run(
        ["sh", "-c", check.replace("python", sys.executable)], capture_output=True, text=True, cwd=Path("/")
    )
    assert done.returncode == 0, done.stderr[-2000:]
