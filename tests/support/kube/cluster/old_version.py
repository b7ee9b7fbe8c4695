"""An earlier version beside the checkout: its chart, and images built from it."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.kube.cluster.commands import run
from tests.support.kube.cluster.settings import ClusterSettings

RELEASED = "74d5cd06"
"""Release 0.1.0, as CHANGELOG.md names it."""
IMAGES = ("gateway", "router", "lora-registry", "autoscaler", "worker", "model-demo", "redis")


@dataclass(frozen=True, slots=True)
class OldVersion:
    """Its images are on the nodes."""

    tag: str
    chart: Path


@contextmanager
def old_version(cluster: ClusterSettings, folder: Path, timeout_s: float = 1800.0) -> Iterator[OldVersion]:
    """Checked out into ``folder``, which must not be there yet; built and loaded as the checkout itself is.

    The commit is that of E2E_OLD, or of the release.
    """
    commit = os.environ.get("E2E_OLD") or RELEASED
    run(["git", "worktree", "add", "--detach", str(folder), commit])
    try:
        tag = f"e2e-{commit}"
        if cluster.build:
            builder = ["--builder", shlex.join(cluster.build)]
            command = [
                sys.executable,
                str(folder / "scripts" / "images" / "build_images.py"),
                "--no-sbom",
                "--tag",
                tag,
            ]
            run([*command, *builder], timeout_s=timeout_s)
        for name in IMAGES if cluster.load else ():
            run([*cluster.load, f"stratosserve/{name}:{tag}"], timeout_s=timeout_s)
        yield OldVersion(tag=tag, chart=folder / "deploy" / "helm" / "stratosserve")
    finally:
        run(["git", "worktree", "remove", "--force", str(folder)])
