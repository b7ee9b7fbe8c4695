"""The chart's objects for given values: by `helm` where it is on the path, else by the package helm-python-sdk.

Nothing here needs a cluster. Objects come back parsed and in one order, so that both renderers give the same.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
CHART = ROOT / "deploy" / "helm" / "stratosserve"
KUBE_VERSION = "1.34.0"
NO_RENDERER = "neither helm is on the path nor the package helm-python-sdk (extra charts) installed"
_ORDER = (
    "PriorityClass", "NetworkPolicy", "PodDisruptionBudget", "ServiceAccount", "Secret", "ConfigMap",
    "PersistentVolumeClaim", "Role", "RoleBinding", "Service", "Deployment", "Job", "CronJob", "Ingress", "Pod",
)  # fmt: skip
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class RenderError(ValueError):
    """The chart refuses the values; the message is Helm's."""


def has_renderer() -> bool:
    """Whether charts can be rendered here."""
    return bool(shutil.which("helm")) or importlib.util.find_spec("helm_python") is not None


def render(
    values: Mapping[str, Any], *, release: str = "demo", namespace: str = "stratos", kube_version: str = KUBE_VERSION
) -> list[dict[str, Any]]:
    """All objects, those of hooks included.

    Raises:
        RenderError: values that the schema or a template refuses.
    """
    by_command = shutil.which("helm") is not None
    text = (_by_command if by_command else _by_package)(values, release, namespace, kube_version)
    objects = [found for found in yaml.load_all(text, Loader=_LOADER) if found]
    return sorted(objects, key=_place)


def notes(values: Mapping[str, Any]) -> str:
    """What a user reads after an installation."""
    return _run("install", "--dry-run=client", values, "demo", "stratos").partition("NOTES:\n")[2]


def lint(values: Mapping[str, Any], kube_version: str = KUBE_VERSION) -> str:
    """What `helm lint --strict` says.

    Raises:
        RenderError: it finds a fault.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "values.yaml"
        path.write_text(yaml.safe_dump(dict(values)), encoding="utf-8")
        return _helm("lint", "--strict", "--kube-version", kube_version, "-f", str(path), str(CHART))


def _by_command(values: Mapping[str, Any], release: str, namespace: str, kube_version: str) -> str:
    return _run("template", f"--kube-version={kube_version}", values, release, namespace)


def _run(verb: str, option: str, values: Mapping[str, Any], release: str, namespace: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "values.yaml"
        path.write_text(yaml.safe_dump(dict(values)), encoding="utf-8")
        return _helm(verb, release, str(CHART), option, "-n", namespace, "-f", str(path))


def _helm(*arguments: str) -> str:
    # Without a configuration of its own the command would ask the cluster that the user works with.
    environment = {**os.environ, "KUBECONFIG": os.devnull, "HELM_NO_PLUGINS": "1"}
    done = subprocess.run(["helm", *arguments], capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise RenderError((done.stderr or done.stdout).strip())
    return done.stdout


def _by_package(values: Mapping[str, Any], release: str, namespace: str, _: str) -> str:
    import helm_python

    try:
        with helm_python.Chart.load(str(CHART)) as chart:
            files = chart.render(dict(values), name=release, namespace=namespace)
    except (helm_python.errors.HelmValuesError, helm_python.errors.HelmRenderError) as error:
        raise RenderError(str(error)) from error
    return "\n---\n".join(text for path, text in files.items() if path.endswith(".yaml"))


def _place(found: dict[str, Any]) -> tuple[int, str, str]:
    kind = found["kind"]
    return (_ORDER.index(kind) if kind in _ORDER else len(_ORDER), kind, found["metadata"]["name"])
