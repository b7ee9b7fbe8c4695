"""Runs the commands of docs/operations.md as a reader would, with names of the test's own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping

from tests.support.document_blocks import section, shell_blocks
from tests.support.kube.cluster.commands import CommandFailed
from tests.support.paths import ROOT

DOCUMENT = ROOT / "docs" / "operations.md"
HEADING = "Kubernetes"


def run_documented(name: str, environment: Mapping[str, str], timeout_s: float = 900.0) -> str:
    """Output of the block ``name``; its variables come from ``environment``.

    Raises:
        CommandFailed: one of its commands failed.
    """
    code = shell_blocks(section(DOCUMENT, HEADING))[name]
    command = ["bash", "-euo", "pipefail", "-c", code]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    if done.returncode:
        raise CommandFailed(f"{code}ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout
