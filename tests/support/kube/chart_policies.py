"""What every rendering of the chart keeps to, whatever its values: each rule yields what breaks it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pydantic import ValidationError

from scripts.docs.document_settings import service_class
from stratos.rpc.settings import InvalidSettings, check_names, read_environment
from tests.support.kube.chart_objects import Object, kinds, matches, pods, variables

_LABEL = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?\Z")
_SECRET_NAME = re.compile(r"(PEPPER|PASSWORD|SECRET|API_KEY|REDIS_URL|REDISCLI_AUTH|WATERMARK__KEY)$")
_RESTRICTED_VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
}
_CLUSTER_KINDS = ("PriorityClass", "ClusterRole", "ClusterRoleBinding", "APIService", "CustomResourceDefinition")
_WITH_TOKEN = ("certificates", "autoscaler")
_WITHOUT_PROBES = ("spare", "tools", "test", "certificates")
CLOSE_S = 10


def names(objects: list[Object]) -> Iterator[str]:
    seen = Counter((o["kind"], o["metadata"]["name"]) for o in objects)
    yield from (f"{kind} {name} appears twice" for (kind, name), count in seen.items() if count > 1)
    for kind, name in seen:
        if kind not in (*_CLUSTER_KINDS, "RoleBinding") and not _LABEL.match(name):
            yield f"{kind} {name}: not a label of DNS"
        if kind == "CronJob" and len(name) > 52:
            yield f"{kind} {name}: longer than 52 characters, which its jobs' names need"


def names_in_pods(objects: list[Object]) -> Iterator[str]:
    """An API server refuses a pod in which two parts of a kind have one name; the schemas do not say so."""
    for pod in pods(objects):
        parts = {"container": pod.containers, "volume": pod.spec.get("volumes", [])}
        for part, found in parts.items():
            yield from (f"{pod.owner}: {part} {name} appears twice" for name in _repeated(e["name"] for e in found))
        for container in pod.containers:
            paths = _repeated(mount["mountPath"] for mount in container.get("volumeMounts", []))
            yield from (f"{pod.owner}/{container['name']}: two mounts at {path}" for path in paths)


def _repeated(found: Iterable[str]) -> list[str]:
    return [name for name, count in Counter(found).items() if count > 1]


def pod_security(objects: list[Object]) -> Iterator[str]:
    """The Pod Security level "restricted", and a root that is read-only."""
    for pod in pods(objects):
        context = pod.spec.get("securityContext", {})
        if not context.get("runAsNonRoot") or context.get("runAsUser", 0) < 10000:
            yield f"{pod.owner}: runs as root"
        if context.get("seccompProfile") != {"type": "RuntimeDefault"}:
            yield f"{pod.owner}: no seccomp profile"
        if any(pod.spec.get(name) for name in ("hostNetwork", "hostPID", "hostIPC")):
            yield f"{pod.owner}: shares a namespace of the node"
        for volume in pod.spec.get("volumes", []):
            if extra := set(volume) - {"name"} - _RESTRICTED_VOLUMES - {"image"}:
                yield f"{pod.owner}: volume {volume['name']} is a {extra}"
        for container in pod.containers:
            own = container.get("securityContext", {})
            wanted = {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            if own != wanted:
                yield f"{pod.owner}/{container['name']}: securityContext {own}"


def quota(objects: list[Object]) -> Iterator[str]:
    """A ResourceQuota refuses a container that does not say what it takes at most."""
    for pod in pods(objects):
        for container in pod.containers:
            resources = container.get("resources", {})
            for part in ("requests", "limits"):
                if missing := {"cpu", "memory"} - set(resources.get(part, {})):
                    yield f"{pod.owner}/{container['name']}: no {part} of {missing}"


def isolation(objects: list[Object]) -> Iterator[str]:
    """Accounts without tokens where none is needed, one network policy for each pod, no variables of other Services."""
    accounts, policies = kinds(objects, "ServiceAccount"), kinds(objects, "NetworkPolicy")
    for pod in pods(objects):
        account = pod.spec.get("serviceAccountName")
        if account not in accounts:
            yield f"{pod.owner}: account {account} is not there"
        if pod.spec.get("automountServiceAccountToken") is not False and pod.component not in _WITH_TOKEN:
            yield f"{pod.owner}: has a token"
        if pod.spec.get("enableServiceLinks") is not False:
            yield f"{pod.owner}: takes variables of other Services"
        count = sum(matches(policy["spec"]["podSelector"], pod.labels) for policy in policies.values())
        if policies and count != 1:
            yield f"{pod.owner}: {count} network policies select it"


def probes(objects: list[Object]) -> Iterator[str]:
    for pod in pods(objects):
        for container in pod.spec["containers"]:
            missing = {"startupProbe", "readinessProbe", "livenessProbe"} - set(container)
            if pod.component not in _WITHOUT_PROBES and missing:
                yield f"{pod.owner}: no {missing}"


def budgets(objects: list[Object]) -> Iterator[str]:
    found = kinds(objects, "PodDisruptionBudget").values()
    for pod in pods(objects):
        count = sum(matches(budget["spec"]["selector"], pod.labels) for budget in found)
        wanted = 0 if pod.component in (*_WITHOUT_PROBES, "redis", "object-store") else 1
        if found and count != wanted:
            yield f"{pod.owner}: {count} disruption budgets"


def images(objects: list[Object]) -> Iterator[str]:
    for pod in pods(objects):
        for container in pod.containers:
            if not re.search(r"(:[\w.-]+|@sha256:[0-9a-f]{64})$", container["image"]):
                yield f"{pod.owner}/{container['name']}: image {container['image']} has neither tag nor digest"


def secrets(objects: list[Object]) -> Iterator[str]:
    """No secret is in a variable's text; a reference to another variable is not its text."""
    for pod in pods(objects):
        for container in pod.containers:
            for entry in container.get("env", []):
                if _SECRET_NAME.search(entry["name"]) and "$(" not in entry.get("value", "$("):
                    yield f"{pod.owner}: {entry['name']} is written out"


def settings(objects: list[Object]) -> Iterator[str]:
    """The variables of each service make settings that it takes: none is unknown, missing or out of range."""
    for pod in pods(objects):
        for container in pod.spec["containers"]:
            if (module := _module(container)) is None:
                continue
            cls, environment = service_class(module.removeprefix("stratos_")), variables(container)
            try:
                check_names(cls, environment)
                cls(**read_environment(cls, environment))
            except (InvalidSettings, ValidationError) as error:
                yield f"{pod.owner}: {error}"
            if twice := [n for n, c in Counter(e["name"] for e in container["env"]).items() if c > 1]:
                yield f"{pod.owner}: {twice} appear twice"


def grace(objects: list[Object]) -> Iterator[str]:
    """A pod has time for the pause before SIGTERM, the lag, the drain and the close."""
    for pod in pods(objects):
        for container in pod.spec["containers"]:
            if (module := _module(container)) is None:
                continue
            cls = service_class(module.removeprefix("stratos_"))
            found = cls(**read_environment(cls, variables(container)))
            hook = container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", ["sleep(0)"])[-1]
            pause = float(re.findall(r"sleep\((\d+)\)", hook)[0])
            needed = pause + found.endpoint_lag_s + found.drain_timeout_s + found.stop_grace_s + CLOSE_S
            if not needed < pod.spec["terminationGracePeriodSeconds"] < needed + 30:
                yield f"{pod.owner}: has {pod.spec['terminationGracePeriodSeconds']} s, needs {needed} s"


RULES: tuple[Callable[[list[Object]], Iterator[str]], ...] = (
    names, names_in_pods, pod_security, quota, isolation, probes, budgets, images, secrets, settings, grace,
)  # fmt: skip


def breaches(objects: list[Object]) -> list[str]:
    """What breaks a rule."""
    return [f"{rule.__name__}: {problem}" for rule in RULES for problem in rule(objects)]


def _module(container: dict[str, Any]) -> str | None:
    command = container.get("command", [])
    return command[2] if command[:2] == ["python", "-m"] else None
