"""Builds the images of this checkout and brings them to the nodes."""

from __future__ import annotations

import shlex
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from scripts.images.build_images import chosen
from tests.support.kube.cluster.commands import run
from tests.support.kube.cluster.settings import ClusterSettings

JOBS = 2
"""Images that are built, and loaded, at once: they wait for packages and disks as much as they compute."""


def provide_images(settings: ClusterSettings, timeout_s: float = 1800.0) -> dict[str, float]:
    """Seconds that building and loading took; an empty command leaves its step out, and so do images that are there."""
    if settings.has_images:
        return {"build_s": 0.0, "load_s": 0.0}
    start = time.monotonic()
    if settings.build:
        command = [
            sys.executable,
            "scripts/images/build_images.py",
            "--no-sbom",
            f"--jobs={JOBS}",
            "--tag",
            settings.tag,
        ]
        run([*command, "--builder", shlex.join(settings.build)], timeout_s=timeout_s)
    built = time.monotonic()
    names = [f"stratosserve/{image.name}:{settings.tag}" for image in chosen("")] if settings.load else []
    with ThreadPoolExecutor(JOBS) as pool:
        list(pool.map(lambda name: run([*settings.load, name], timeout_s=timeout_s), names))
    return {"build_s": built - start, "load_s": time.monotonic() - built}


def provide_extra(settings: ClusterSettings, name: str, dockerfile: str) -> str:
    """An image of the tests' own, on top of the one with the stratos command; returns its name. It is on the nodes."""
    image = f"{settings.repository}{name}:{settings.tag}"
    base = f"IMAGE={settings.repository}lora-registry:{settings.tag}"
    if settings.build:
        run([*settings.build, "-t", image, "-f", dockerfile, "--build-arg", base, "."], timeout_s=900)
    if settings.load:
        run([*settings.load, image], timeout_s=900)
    return image
