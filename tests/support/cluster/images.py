"""Builds the images of this checkout and brings them to the nodes."""

from __future__ import annotations

import shlex
import sys
import time

from scripts.build_images import chosen
from tests.support.cluster.commands import run
from tests.support.cluster.settings import ClusterSettings


def provide_images(settings: ClusterSettings, timeout_s: float = 1800.0) -> dict[str, float]:
    """Seconds that building and loading took; an empty command leaves its step out."""
    start = time.monotonic()
    if settings.build:
        command = [sys.executable, "scripts/build_images.py", "--no-sbom", "--tag", settings.tag]
        run([*command, "--builder", shlex.join(settings.build)], timeout_s=timeout_s)
    built = time.monotonic()
    for image in chosen("") if settings.load else ():
        run([*settings.load, f"stratosserve/{image.name}:{settings.tag}"], timeout_s=timeout_s)
    return {"build_s": built - start, "load_s": time.monotonic() - built}
