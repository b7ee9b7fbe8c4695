"""Users: the API server authenticates them, and names them in headers of a connection with its own certificate.

What it shows, and which names are allowed, is in the ConfigMap ``extension-apiserver-authentication`` of kube-system.
Its CA may be replaced at any time, so it is read again and again.  Without it there is no user, and no answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from stratos.common.errors import DependencyDown
from stratos_autoscaler.kubernetes.api import ApiServer

CONFIG_MAP = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication"
Certificate = Mapping[str, Any]
"""The result of ``ssl``'s ``getpeercert``: verified, or empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontProxy:
    """How the API server shows that it is the API server."""

    ca: str
    """PEM of the CAs that sign its client certificate."""
    allowed_names: tuple[str, ...] = ()
    """Common names; none allows every certificate of those CAs."""
    user_headers: tuple[str, ...] = ("X-Remote-User",)
    group_headers: tuple[str, ...] = ("X-Remote-Group",)
    extra_prefixes: tuple[str, ...] = ("X-Remote-Extra-",)


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """The user of a request, as the API server names it."""

    name: str
    groups: tuple[str, ...] = ()
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


async def read_front_proxy(api: ApiServer) -> FrontProxy:
    """Read the cluster's ConfigMap of front proxies.

    Raises:
        DependencyDown: the ConfigMap cannot be read, or names no CA.
        PermissionDenied: the ServiceAccount may not read it.
    """
    found = await api.read(CONFIG_MAP)
    data = (found or {}).get("data") or {}
    ca = data.get("requestheader-client-ca-file", "")
    if not ca.strip():
        raise DependencyDown("the cluster has no CA for front proxies: aggregated APIs are not set up")
    names = {name: tuple(json.loads(data.get(f"requestheader-{name}") or "[]")) for name in _LISTS}
    return FrontProxy(
        ca=ca,
        allowed_names=names["allowed-names"],
        user_headers=names["username-headers"] or ("X-Remote-User",),
        group_headers=names["group-headers"] or ("X-Remote-Group",),
        extra_prefixes=names["extra-headers-prefix"] or ("X-Remote-Extra-",),
    )


def user_of(proxy: FrontProxy, certificate: Certificate, headers: Iterable[tuple[str, str]]) -> User | None:
    """The user; ``None`` where the connection is not the API server's, or names none.

    Args:
        proxy: of the cluster.
        certificate: of the connection's other end, verified by the CAs of ``proxy``.
        headers: of the request, in lower case.
    """
    names = {value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"}
    if not certificate or (proxy.allowed_names and not names & set(proxy.allowed_names)):
        return None
    found = list(headers)
    name = next((value for wanted in proxy.user_headers for key, value in found if key == wanted.lower() and value), "")
    if not name:
        return None
    groups = tuple(value for wanted in proxy.group_headers for key, value in found if key == wanted.lower())
    extra: dict[str, tuple[str, ...]] = {}
    for prefix in (prefix.lower() for prefix in proxy.extra_prefixes):
        for key, value in found:
            if key.startswith(prefix):
                word = unquote(key.removeprefix(prefix))
                extra[word] = (*extra.get(word, ()), value)
    return User(name=name, groups=groups, extra=extra)


_LISTS = ("allowed-names", "username-headers", "group-headers", "extra-headers-prefix")
