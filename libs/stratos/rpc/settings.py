"""Settings that every service has, and the loader that refuses what it does not know.

pydantic ignores environment variables that no field claims, so a misspelt name would silently mean the
default; ``load_settings`` rejects it and names the nearest known one.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from pydantic import SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

_URL_PASSWORD = re.compile(r"(?P<head>[a-z0-9+.-]+://[^/@\s:]*:)[^@/\s]+(?=@)", re.IGNORECASE)


class InvalidSettings(SystemExit):
    """The process cannot start with these settings; uncaught, it prints its message and exits with code 1."""


class ServiceSettings(BaseSettings):
    """Base of every service's settings; a subclass sets ``env_prefix="STRATOS_<SERVICE>_"``."""

    model_config = SettingsConfigDict(extra="forbid", frozen=True, env_ignore_empty=True)

    listen: str = "127.0.0.1:0"
    """host:port of the gRPC server; port 0 picks a free one. Loopback, because nothing here authenticates peers."""
    advertise_host: str = ""
    """Host that peers dial when it is not the one of ``listen`` (a pod listens on 0.0.0.0 and is dialled by its IP)."""
    metrics_listen: str = "127.0.0.1:0"
    """host:port of /metrics, /livez and /readyz, answered from a thread of their own."""
    drain_timeout_s: float = 30.0
    """Longest wait for open work after SIGTERM; must be below the pod's termination grace period."""
    endpoint_lag_s: float = 0.0
    """Seconds between "not ready" and draining, in which load balancers learn of it; 0 on a laptop, where none do."""
    fault_drain_timeout_s: float = 2.0
    """The drain's bound after a fault; short, because peers recover streams faster than a broken process ends them."""
    stop_grace_s: float = 1.0
    """Seconds that streams still open after the drain get to end by themselves."""
    stall_timeout_s: float = 5.0
    """An event loop that has not turned for this long makes the process not ready."""
    log_format: Literal["console", "json"] = "console"
    """"console" for people, "json" for log collectors."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """Least level that is logged."""
    otlp_endpoint: str = ""
    """Where spans are sent (OTLP over gRPC, e.g. "http://collector:4317"); empty turns tracing off."""
    address_file: str = ""
    """JSON {"address", "metrics_address", "pid"} is written here once SERVING, and removed at the end."""


SettingsT = TypeVar("SettingsT", bound=ServiceSettings)


def load_settings(cls: type[SettingsT], **overrides: Any) -> SettingsT:
    """Read settings from the environment; ``overrides`` (flags) win over it.

    Raises:
        InvalidSettings: an unknown name under the service's prefix, or a value that does not fit.
    """
    check_names(cls, os.environ)
    try:
        return cls(**overrides)
    except ValidationError as error:
        lines = [f"{_env_name(cls, str(e['loc'][0]) if e['loc'] else '')}: {e['msg']}" for e in error.errors()]
        raise InvalidSettings("invalid settings\n  " + "\n  ".join(lines)) from None
    except SettingsError as error:
        raise InvalidSettings(f"invalid settings\n  {error}") from None


def check_names(cls: type[ServiceSettings], environ: Mapping[str, str]) -> None:
    """Refuse names that start with the service's prefix and that no field claims."""
    prefix = str(cls.model_config.get("env_prefix", "")).upper()
    known = [_env_name(cls, field) for field in cls.model_fields]
    problems = []
    for name in sorted(environ):
        if not prefix or not name.upper().startswith(prefix) or name.upper() in known:
            continue
        near = difflib.get_close_matches(name.upper(), known, n=1, cutoff=0.0)
        hint = f"did you mean {near[0]}?" if near else "there are no settings under this prefix"
        if environ[name].startswith("tcp://"):
            hint = "Kubernetes set it for a Service of that name; set enableServiceLinks: false in the pod"
        problems.append(f"{name}: unknown setting; {hint}")
    if problems:
        raise InvalidSettings("invalid settings\n  " + "\n  ".join(problems))


def describe_settings(settings: ServiceSettings) -> dict[str, str]:
    """Resolved settings as text, with secrets and passwords in URLs masked."""
    shown: dict[str, str] = {}
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        masked = ("***" if value.get_secret_value() else "") if isinstance(value, SecretStr) else str(value)
        shown[name] = _URL_PASSWORD.sub(r"\g<head>***", masked)
    return shown


def env_name_of(settings: ServiceSettings, field: str) -> str:
    """The environment variable that sets ``field``, for messages."""
    return _env_name(type(settings), field)


def _env_name(cls: type[ServiceSettings], field: str) -> str:
    return f"{cls.model_config.get('env_prefix', '')}{field}".upper()
