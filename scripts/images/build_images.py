#!/usr/bin/env python3
"""Build the container images, and the CycloneDX list of what each one holds.

python -m scripts.images.build_images                                  all images, with docker
python -m scripts.images.build_images --builder "podman build" --only gateway,router --tag v1
python -m scripts.images.build_images --only worker-gpu                with CUDA's torch and Triton, several GB

The builder has to take -t, -f, --build-arg and --output as `docker build` does. Lists go to build/sbom/NAME.cdx.json.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import threading
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SBOM_DOCKERFILE = "deploy/images/sbom.Dockerfile"


@dataclass(frozen=True, slots=True)
class Image:
    """One image: its name below the repository, and what it is built from."""

    name: str
    dockerfile: str
    build_args: dict[str, str] = field(default_factory=dict)
    is_default: bool = True
    """Built when no names are given."""


SERVICE = "deploy/images/service.Dockerfile"
WORKER = "deploy/images/worker.Dockerfile"
IMAGES = (
    Image("gateway", SERVICE, {"SERVICE": "gateway"}),
    Image("worker", WORKER),  # takes longest
    Image("lora-registry", SERVICE, {"SERVICE": "lora_registry"}),
    Image("router", SERVICE, {"SERVICE": "router"}),
    Image("autoscaler", SERVICE, {"SERVICE": "autoscaler"}),
    Image("worker-gpu", WORKER, {"EXTRAS": "gpu"}, is_default=False),
    Image("model-demo", "deploy/images/model-demo.Dockerfile"),
    Image("redis", "deploy/images/redis.Dockerfile"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """How images are built and named."""

    builder: tuple[str, ...]
    repository: str
    tag: str
    version: str
    revision: str
    source: str

    def reference(self, image: Image) -> str:
        """repository/name:tag"""
        return f"{self.repository}/{image.name}:{self.tag}"

    def command(self, image: Image) -> list[str]:
        """Builds the image."""
        args = {"VERSION": self.version, "REVISION": self.revision, "SOURCE": self.source, **image.build_args}
        return [*self.builder, "-t", self.reference(image), "-f", image.dockerfile, *_build_args(args), "."]

    def sbom_command(self, image: Image, folder: Path) -> list[str]:
        """Writes the image's list into ``folder``; the image has to be there."""
        args = {"IMAGE": self.reference(image), "VERSION": self.version}
        output = ("--output", f"type=local,dest={folder}")
        return [*self.builder, "-f", SBOM_DOCKERFILE, *_build_args(args), *output, "."]


def _build_args(args: dict[str, str]) -> list[str]:
    return [part for name, value in args.items() for part in ("--build-arg", f"{name}={value}")]


def chosen(names: str) -> list[Image]:
    """The images named, separated by commas; without names those of a release for CPUs.

    Raises:
        SystemExit: there is no such image.
    """
    if not names:
        return [image for image in IMAGES if image.is_default]
    known = {image.name: image for image in IMAGES}
    if unknown := sorted(set(names.split(",")) - set(known)):
        raise SystemExit(f"no image is called {', '.join(unknown)}; there are {', '.join(known)}")
    return [known[name] for name in names.split(",")]


def _git(*argv: str) -> str:
    done = subprocess.run(["git", *argv], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--builder", default="docker build", help="command that builds an image")
    parser.add_argument("--repository", default="stratosserve", help="put in front of the names")
    parser.add_argument("--tag", default="", help="default: the version of the project")
    parser.add_argument("--only", default="", help="names, separated by commas")
    parser.add_argument("--source", default="unknown", help="address of the sources, for the label")
    parser.add_argument("--sbom", type=Path, default=ROOT / "build" / "sbom", help="folder of the lists")
    parser.add_argument("--no-sbom", action="store_true", help="build images only")
    parser.add_argument(
        "--jobs", type=int, default=1, help="images built at once; the first one alone, for what all share"
    )
    return parser.parse_args()


def main() -> int:
    """Build what is asked for; no further image is begun once one has failed."""
    args = _arguments()
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    revision = _git("rev-parse", "HEAD") or "unknown"
    if _git("status", "--porcelain", "--untracked-files=no"):
        revision += "-dirty"
    build = Build(builder=tuple(shlex.split(args.builder)), repository=args.repository, tag=args.tag or version,
                  version=version, revision=revision, source=args.source)  # fmt: skip
    images = chosen(args.only)
    if not args.no_sbom:
        args.sbom.mkdir(parents=True, exist_ok=True)
    sbom = None if args.no_sbom else args.sbom
    try:
        _make_all(build, images, sbom, args.jobs)
    except subprocess.CalledProcessError as error:
        print(f"{shlex.join(error.cmd)} ended with {error.returncode}", file=sys.stderr)
        return 1
    return 0


def _make_all(build: Build, images: list[Image], sbom: Path | None, num_jobs: int) -> None:
    _make(build, images[0], sbom)
    has_failed = threading.Event()

    def make(image: Image) -> None:
        if has_failed.is_set():
            return
        try:
            _make(build, image, sbom)
        except subprocess.CalledProcessError:
            has_failed.set()
            raise

    with ThreadPoolExecutor(num_jobs) as pool:
        list(pool.map(make, images[1:]))


def _make(build: Build, image: Image, sbom: Path | None) -> None:
    start = time.monotonic()
    steps = [build.command(image)] + ([] if sbom is None else [build.sbom_command(image, sbom)])
    for step in steps:
        subprocess.run(step, cwd=ROOT, check=True)
    print(f"==> {build.reference(image)} in {time.monotonic() - start:.0f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
