"""Under mTLS each role may call what it does call, and nothing else; and the chart's NetworkPolicies let it through.

Callers are read from the code: who makes a stub, and which of its methods stand in the same file.  A client of
``rpc/clients`` counts for those that import it and call its method.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Set
from functools import cache
from pathlib import Path

import yaml

from stratos.common.tls.identity import WORKER_ROLES, PeerRole
from stratos.rpc.serving.access import ACCESS
from tests.support.api_methods import METHODS
from tests.support.paths import ROOT

CLIENTS = ROOT / "libs/stratos/rpc/clients"
CLI = frozenset({PeerRole.SUPERVISOR})
ROLES: dict[str, frozenset[PeerRole]] = {
    "services/gateway": frozenset({PeerRole.GATEWAY}),
    "services/router": frozenset({PeerRole.ROUTER}),
    "services/autoscaler": frozenset({PeerRole.AUTOSCALER}),
    "services/lora_registry": frozenset({PeerRole.LORA_REGISTRY}),
    "libs/stratos/worker": WORKER_ROLES,
    "libs/stratos/cli/adapters.py": frozenset({PeerRole.ADMIN}),
    "libs/stratos/cli/decisions.py": CLI | {PeerRole.ADMIN},
    # `stratos admin adopt-store --gateway` shows a gateway's certificate, since gateways alone may have MACs of keys.
    "libs/stratos/cli/stores.py": frozenset({PeerRole.GATEWAY}),
    "libs/stratos/cli": CLI,
}
"""By where code lies: which certificates it shows; the longest place counts."""
IN_PLAIN_TEXT = {"libs/stratos/reproduce/load/worker_pair.py"}
"""Measures two workers of its own."""
COMPONENTS = {PeerRole.ADMIN: "tools", PeerRole.METRICS_READER: "kedaClients"}
"""Of the chart, where a role has another name there."""
SERVED = {
    "AutoscalerService": {"autoscaler"}, "ExternalScaler": {"autoscaler"}, "RegistryService": {"lora-registry"},
    "RouterService": {"router"}, "SnapshotService": {"gateway"}, "LimitsService": {"gateway"},
    "DecodeService": {"decode-worker"}, "EmbedService": {"prefill-worker"},
    "WorkerService": set(WORKER_ROLES), "CacheService": set(WORKER_ROLES), "KvSourceService": set(WORKER_ROLES),
}  # fmt: skip
"""Components that serve; a supervisor is no part of a cluster."""
SOURCES = {("prefill-worker", "prefill-worker")}
"""Workers that call no other: only decode workers fetch, and prefill workers tell these of what they sent."""

Call = tuple[PeerRole, str]


def service_of(method: str) -> str:
    return method.split("/")[1].rpartition(".")[2]


@cache
def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def attributes(path: Path) -> frozenset[str]:
    """Names behind a dot in a file."""
    return frozenset(node.attr for node in ast.walk(ast.parse(text(path))) if isinstance(node, ast.Attribute))


def stubs_of(path: Path) -> set[str]:
    """Methods of the stubs that a file makes; files without one are not parsed, which takes long."""
    return stub_calls(attributes(path)) if "Stub" in text(path) else set()


@cache
def sources(folder: str) -> tuple[Path, ...]:
    place = ROOT / folder
    return tuple(sorted(place.rglob("*.py"))) if place.is_dir() else (place,)


def stub_calls(names: Set[str]) -> set[str]:
    """Methods of the stubs that are among some names."""
    return {m for m in METHODS if f"{service_of(m)}Stub" in names and m.rpartition("/")[2] in names}


def client_calls() -> dict[tuple[str, str], set[str]]:
    """By class (or function) of a client, and by what callers write: which methods that calls."""
    found: dict[tuple[str, str], set[str]] = {}
    for path in CLIENTS.glob("*.py"):
        near = stubs_of(path)
        for node in ast.parse(path.read_text(encoding="utf-8")).body if near else ():
            if isinstance(node, ast.ClassDef):
                found |= {(node.name, name): calls for name, calls in calls_of_class(node, near)}
            elif isinstance(node, ast.AsyncFunctionDef):
                found[node.name, node.name] = called(node, near)
    return found


def calls_of_class(node: ast.ClassDef, near: set[str]) -> Iterator[tuple[str, set[str]]]:
    """What methods of a class call, also through what its constructor was given a method for."""
    functions = [f for f in node.body if isinstance(f, ast.FunctionDef | ast.AsyncFunctionDef)]
    kept: dict[str, set[str]] = {}
    for line in (line for f in functions if f.name == "__init__" for line in f.body):
        if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Attribute):
            kept[line.targets[0].attr] = called(line.value, near)
    for function in (f for f in functions if not f.name.startswith("_") and f.name != "close"):
        used = {n.attr for n in ast.walk(function) if isinstance(n, ast.Attribute)}
        yield function.name, called(function, near).union(*(kept[name] for name in used & set(kept)))


def called(node: ast.AST, near: set[str]) -> set[str]:
    names = {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}
    return {method for method in near if method.rpartition("/")[2] in names}


def place_of(path: Path) -> str:
    """The longest place of ``ROLES`` that a file lies in, or ""."""
    name = path.relative_to(ROOT).as_posix()
    return max((place for place in ROLES if name == place or name.startswith(f"{place}/")), key=len, default="")


def calls() -> dict[Call, str]:
    """Every call from one process to another, with a file that makes it."""
    found: dict[Call, str] = {}
    clients = client_calls()
    for place, roles in ROLES.items():
        files = [path for path in sources(place) if place_of(path) == place]
        have = {client for client, _ in clients if any(client in text(path) for path in files)}
        names = {name: path for path in files if have for name in attributes(path)}
        made = {method: path for path in files for method in stubs_of(path)}
        for (client, name), methods in clients.items():
            if client in have and (name in names or name == client):
                made |= {method: names.get(name, files[0]) for method in methods}
        for method, path in made.items():
            found |= {(role, method): path.relative_to(ROOT).as_posix() for role in roles}
    return found


def test_every_file_that_calls_has_a_role() -> None:
    """Or is a client, or generated."""
    clients = {client for client, _ in client_calls()}
    others = (CLIENTS, ROOT / "libs/stratos/api")
    lost = {
        path.relative_to(ROOT).as_posix()
        for folder in ("services", "libs/stratos")
        for path in sources(folder)
        if not place_of(path) and not any(path.is_relative_to(other) for other in others)
        if stubs_of(path) or any(client in text(path) for client in clients)
    }
    assert lost == IN_PLAIN_TEXT


def test_what_is_called_may_be_called_and_no_right_lies_unused() -> None:
    """A caller without the right gets ``PeerRefused`` in production alone: tests speak plain text, but for some."""
    made = calls()
    allowed = {(role, method) for method, roles in ACCESS.items() if method in METHODS for role in roles}
    keda = {pair for pair in allowed if pair[0] is PeerRole.METRICS_READER}  # another program
    refused = {
        f"{role} calls {method} in {path}" for (role, method), path in made.items() if (role, method) not in allowed
    }
    assert not refused
    assert allowed - keda == set(made)


def test_network_policies_are_open_for_every_call_and_for_no_other() -> None:
    keda = {(PeerRole.METRICS_READER, method) for method in METHODS if service_of(method) == "ExternalScaler"}
    needed = {
        (COMPONENTS.get(role, str(role)), str(component))
        for role, method in keda.union(calls())
        for component in SERVED.get(service_of(method), set())
        if role is not PeerRole.SUPERVISOR
    }
    table = yaml.safe_load(text(ROOT / "deploy/helm/stratosserve/files/edges.yaml"))["edges"]
    assert {(edge["from"], edge["to"]) for edge in table if edge["port"] == "grpc"} == needed - SOURCES
