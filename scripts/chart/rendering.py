"""The chart's objects for given values: by `helm` where it is on the path, else by the package helm-python-sdk.

Nothing here needs a cluster. Objects come back parsed and in one order, so that both renderers give the same.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "helm" / "stratosserve"
KUBE_VERSION = "1.34.0"
NO_RENDERER = "neither helm is on the path nor the package helm-python-sdk installed"
_ORDER = (
    "PriorityClass", "ClusterRole", "ClusterRoleBinding", "NetworkPolicy", "PodDisruptionBudget", "ServiceAccount",
    "Secret", "ConfigMap",
    "PersistentVolumeClaim", "Role", "RoleBinding", "Service", "Deployment",
    "HorizontalPodAutoscaler", "APIService", "Job", "CronJob", "Ingress", "Pod",
)  # fmt: skip
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class RenderError(ValueError):
    """The chart refuses the values; the message is Helm's."""


def has_renderer() -> bool:
    """Whether charts can be rendered here."""
    return _has_command() or importlib.util.find_spec("helm_python") is not None


def render(
    values: Mapping[str, Any],
    *,
    release: str = "demo",
    namespace: str = "stratos",
    kube_version: str = KUBE_VERSION,
    chart: Path = CHART,
) -> list[dict[str, Any]]:
    """All objects, those of hooks included.

    Raises:
        RenderError: values that the schema or a template refuses.
    """
    text = rendered_text(values, release=release, namespace=namespace, kube_version=kube_version, chart=chart)
    objects = [found for found in yaml.load_all(text, Loader=_LOADER) if found]
    return sorted(objects, key=_place)


def rendered_text(
    values: Mapping[str, Any], *, release: str, namespace: str, kube_version: str = KUBE_VERSION, chart: Path = CHART
) -> str:
    """What ``helm template`` prints.

    Raises:
        RenderError: as ``render``.
    """
    if _has_command():
        arguments = [release, str(chart), f"--kube-version={kube_version}", "-n", namespace]
        return _run("template", arguments, values)
    files = _files_by_package(values, release, namespace, kube_version, chart)
    return "\n---\n".join(text for path, text in sorted(files.items()) if path.endswith(".yaml"))


def notes(values: Mapping[str, Any]) -> str:
    """Notes that a user reads after an installation."""
    if _has_command():
        said = _run("install", ["demo", str(CHART), "--dry-run=client", "-n", "stratos"], values)
        return said.partition("NOTES:\n")[2]
    return _files_by_package(values, "demo", "stratos", KUBE_VERSION)[f"{CHART.name}/templates/NOTES.txt"]


def lint(values: Mapping[str, Any], kube_version: str = KUBE_VERSION, chart: Path = CHART) -> None:
    """`helm lint --strict`.

    Raises:
        RenderError: it finds a fault, or something to warn of.
    """
    if _has_command():
        _run("lint", ["--strict", "--kube-version", kube_version, "-n", "stratos", str(chart)], values)
        return
    import helm_python

    report = helm_python.lint(str(chart), dict(values), strict=True, namespace="stratos", kube_version=kube_version)
    if report["errors"]:
        raise RenderError("\n".join(report["errors"]))


def _has_command() -> bool:
    return shutil.which("helm") is not None


def _run(verb: str, arguments: list[str], values: Mapping[str, Any]) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "values.yaml"
        path.write_text(yaml.safe_dump(dict(values)), encoding="utf-8")
        return _helm(verb, *arguments, "-f", str(path))


def _helm(*arguments: str) -> str:
    # Without a configuration of its own the command would ask the cluster that the user works with.
    environment = {**os.environ, "KUBECONFIG": os.devnull, "HELM_NO_PLUGINS": "1"}
    done = subprocess.run(["helm", *arguments], capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise RenderError(f"{done.stdout}{done.stderr}".strip())
    return done.stdout


def _files_by_package(
    values: Mapping[str, Any], release: str, namespace: str, kube_version: str, chart: Path = CHART
) -> dict[str, str]:
    import helm_python
    from helm_python import _native  # ``Chart.render`` does not pass the version on, the library takes it

    class VersionedChart(helm_python.Chart):
        def render_for(self, options: Mapping[str, str]) -> dict[str, str]:
            rendered = _native.call_string("helm_render", self._raw(), json.dumps(dict(values)), json.dumps(options))
            return dict(json.loads(rendered))

    options = {"name": release, "namespace": namespace, "kube_version": f"v{kube_version}"}
    try:
        with VersionedChart.load(str(chart)) as loaded:
            assert isinstance(loaded, VersionedChart)
            return loaded.render_for(options)
    except (helm_python.HelmValuesError, helm_python.HelmRenderError) as error:
        raise RenderError(str(error)) from error


def _place(found: dict[str, Any]) -> tuple[int, str, str]:
    kind = found["kind"]
    return (_ORDER.index(kind) if kind in _ORDER else len(_ORDER), kind, found["metadata"]["name"])
