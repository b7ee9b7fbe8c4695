"""What the tests are told about the cluster, from the environment."""

from __future__ import annotations

import os
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.support.paths import ROOT

SMALL = "deploy/helm/one-node.values.yaml"
# A point whose subject is not scaling counts on the pods that its values name, and is not alone in the cluster.
FIXED_SIZES = (
    "--set=gateway.autoscaling.mode=none,prefillWorker.autoscaling.mode=none,decodeWorker.autoscaling.mode=none"
)


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """The commands are lists of words; the arguments are appended."""

    build: tuple[str, ...]
    """Takes what `docker build` takes; empty: the images are there already."""
    load: tuple[str, ...]
    """Takes an image and makes every node know it; empty: the nodes pull."""
    node: tuple[str, ...]
    """Takes kill, revive, cut or join, and the name of a node; empty: tests of lost nodes are skipped."""
    api: tuple[str, ...]
    """Takes stop or start, of the API server; empty: that test is skipped."""
    registry: str
    """Put in front of the images' names when nodes pull."""
    tag: str
    values: tuple[Path, ...]
    """More values files, for what is special about the cluster."""
    has_images: bool = False
    """Those of the product are on the nodes; what tests add to them is not."""

    @classmethod
    def from_environment(cls) -> ClusterSettings:
        read = os.environ.get
        return cls(
            build=tuple(shlex.split(read("E2E_BUILD", ""))),
            load=tuple(shlex.split(read("E2E_LOAD", ""))),
            node=tuple(shlex.split(read("E2E_NODE", ""))),
            api=tuple(shlex.split(read("E2E_API", ""))),
            registry=read("E2E_REGISTRY", ""),
            tag=read("E2E_TAG", "") or f"e2e-{commit()[:12]}",
            values=tuple(Path(path) for path in shlex.split(read("E2E_VALUES", ""))),
            has_images=read("E2E_IMAGES", "") == "there",
        )

    @property
    def repository(self) -> str:
        """Put in front of an image's name."""
        return f"{self.registry}/stratosserve/" if self.registry else "stratosserve/"

    def helm_arguments(self, *, has_fixed_sizes: bool = True) -> list[str]:
        """Flags of helm install and upgrade for what is special about the cluster."""
        files = [part for path in self.values for part in ("-f", str(path))]
        registry = ["--set", f"image.registry={self.registry}"] if self.registry else []
        return [*([FIXED_SIZES] if has_fixed_sizes else []), *registry, *files]

    def small_arguments(self) -> list[str]:
        """The same, for one of everything with the images of this run."""
        flags = ["--set", f"image.tag={self.tag},keepOnUninstall=false"]
        return ["-f", SMALL, *flags, *self.helm_arguments()]

    def documented_environment(self, namespace: str, *, has_fixed_sizes: bool = True) -> dict[str, str]:
        """The variables that the blocks of docs/operations.md leave to the reader."""
        arguments = self.helm_arguments(has_fixed_sizes=has_fixed_sizes)
        return {"NAMESPACE": namespace, "TAG": self.tag, "HELM_ARGS": shlex.join(arguments)}


def commit() -> str:
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()
