"""Settings that every service has, and the loader that refuses what it does not know.

A settings class holds single values and groups. A group is a frozen dataclass, declared with its defaults, bounds and
texts in the library that takes it; the environment reaches its fields by ``__``:

    field of the class     drain_timeout_s            STRATOS_DECODE_WORKER_DRAIN_TIMEOUT_S
    field of a group       scheduler.max_num_seqs     STRATOS_DECODE_WORKER_SCHEDULER__MAX_NUM_SEQS

Lists and tuples are JSON, an empty variable counts as unset. A misspelt name would silently mean the default, so
``load_settings`` rejects it and names the nearest known one. Libraries read no environment and know no pydantic:
their bounds are ``annotated_types``, which pydantic checks here.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import os
import re
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, SecretStr, ValidationError

from stratos.common.tls.settings import TlsConfig

_URL_PASSWORD = re.compile(r"(?P<head>[a-z0-9+.-]+://[^/@\s:]*:)[^@/\s]+(?=@)", re.IGNORECASE)
_COLLECTIONS = (list, tuple, dict, set, frozenset)


class InvalidSettings(SystemExit):
    """The process cannot start with these settings; uncaught, it prints its message and exits with code 1."""


class ServiceSettings(BaseModel):
    """Base of every service's settings; a subclass sets ``env_prefix``, and adds its values and groups."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)
    env_prefix: ClassVar[str] = ""

    listen: str = "127.0.0.1:0"
    """host:port of the gRPC server; port 0 picks a free one. Loopback, since only mTLS (``tls``) proves peers."""
    advertise_host: str = ""
    """Host that peers dial when it is not the one of ``listen`` (a pod listens on 0.0.0.0 and is dialled by its IP)."""
    metrics_listen: str = "127.0.0.1:0"
    """host:port of /metrics, /livez, /startedz and /readyz, answered from a thread of their own."""
    metric_views: frozenset[Literal["vllm", "llm"]] = frozenset()
    """Names of other platforms under which /metrics shows the same measurements once more, e.g. ["vllm", "llm"]."""
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
    tls: TlsConfig | None = None


SettingsT = TypeVar("SettingsT", bound=ServiceSettings)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One value that can be set: a field of a settings class, or of a group in it."""

    path: tuple[str, ...]
    """Names from the settings class to the value: ("scheduler", "max_num_seqs")."""
    owner: type
    """The class that declares it."""
    annotation: Any
    default: Any
    """``dataclasses.MISSING`` where a value is required."""

    @property
    def is_json(self) -> bool:
        """It is a collection, which the environment gives as JSON."""
        return any(typing.get_origin(part) in _COLLECTIONS for part in _alternatives(self.annotation))


def load_settings(cls: type[SettingsT], **overrides: Any) -> SettingsT:
    """Read settings from the environment; ``overrides`` (flags) win over it.

    Raises:
        InvalidSettings: an unknown name under the service's prefix, or a value that does not fit.
    """
    check_names(cls, os.environ)
    values = read_environment(cls, os.environ)
    try:
        return cls(**(values | overrides))
    except ValidationError as error:
        raise InvalidSettings(_listed(_problem(cls, e["loc"], e["msg"]) for e in error.errors())) from None


def settings_of(cls: type[Any], parents: tuple[str, ...] = ()) -> tuple[Setting, ...]:
    """Every value of a settings class or of a group, in the order of declaration."""
    return _settings_of(typing.cast("Any", cls), parents)


@functools.cache  # reading the annotations of a whole service takes tens of milliseconds
def _settings_of(cls: Any, parents: tuple[str, ...]) -> tuple[Setting, ...]:
    return tuple(_walk(cls, parents))


def _walk(cls: type[Any], parents: tuple[str, ...]) -> Iterator[Setting]:
    for name, annotation, default in _fields(cls):
        path = (*parents, name)
        if group := _group(annotation):
            for setting in settings_of(group, path):
                is_made = dataclasses.is_dataclass(default)
                inner = _value_at(default, setting.path[len(path) :]) if is_made else setting.default
                yield dataclasses.replace(setting, default=inner)
        else:
            yield Setting(path=path, owner=cls, annotation=annotation, default=default)


def check_names(cls: type[ServiceSettings], environ: Mapping[str, str]) -> None:
    """Refuse names that start with the service's prefix and that no setting claims."""
    prefix = cls.env_prefix.upper()
    known = [env_name_of(cls, setting.path) for setting in settings_of(cls)]
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
        raise InvalidSettings(_listed(problems))


def read_environment(cls: type[ServiceSettings], environ: Mapping[str, str]) -> dict[str, Any]:
    """Read the environment's settings, nested as the settings class is; text is left to the class to check.

    Raises:
        InvalidSettings: a collection is not JSON.
    """
    given = {name.upper(): value for name, value in environ.items()}
    tree: dict[str, Any] = {}
    for setting in settings_of(cls):
        name = env_name_of(cls, setting.path)
        text = given.get(name, "")
        if not text:
            continue
        branch = tree
        for parent in setting.path[:-1]:
            branch = branch.setdefault(parent, {})
        try:
            branch[setting.path[-1]] = json.loads(text) if setting.is_json else text
        except json.JSONDecodeError:
            raise InvalidSettings(_listed([f'{name}: must be JSON, as in \'["a", "b"]\''])) from None
    return tree


def describe_settings(settings: ServiceSettings) -> dict[str, str]:
    """Resolved settings as text by dotted path, with secrets and passwords in URLs masked."""
    shown: dict[str, str] = {}
    for setting in settings_of(type(settings)):
        value = _value_at(settings, setting.path)
        masked = ("***" if value.get_secret_value() else "") if isinstance(value, SecretStr) else str(value)
        shown[".".join(setting.path)] = _URL_PASSWORD.sub(r"\g<head>***", masked)
    return shown


def env_name_of(cls: type[ServiceSettings], path: tuple[str, ...]) -> str:
    """The environment variable of a setting."""
    return f"{cls.env_prefix}{'__'.join(path)}".upper()


def _fields(cls: type[Any]) -> Iterator[tuple[str, Any, Any]]:
    """Name, annotation and default of each field."""
    if issubclass(cls, BaseModel):
        for name, info in cls.model_fields.items():
            default = dataclasses.MISSING if info.is_required() else info.get_default(call_default_factory=True)
            yield name, info.annotation, default
        return
    hints = typing.get_type_hints(cls, include_extras=True)
    for field in dataclasses.fields(cls):
        made = field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
        yield field.name, hints[field.name], made


def _value_at(root: Any, path: tuple[str, ...]) -> Any:
    """The value at ``path``; ``None`` in a group that is not set."""
    for name in path:
        root = None if root is None else getattr(root, name)
    return root


def _group(annotation: Any) -> type[Any] | None:
    """The dataclass that a field holds, also where it may be ``None``."""
    return next((p for p in _alternatives(annotation) if isinstance(p, type) and dataclasses.is_dataclass(p)), None)


def _alternatives(annotation: Any) -> list[Any]:
    """The types of a union, bounds taken off."""
    while typing.get_origin(annotation) is typing.Annotated:
        annotation = typing.get_args(annotation)[0]
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return [part for argument in typing.get_args(annotation) for part in _alternatives(argument)]
    return [annotation]


def _problem(cls: type[ServiceSettings], location: tuple[int | str, ...], message: str) -> str:
    """A failed check, under the variable it belongs to; the value is not shown, it may be a secret."""
    settings = list(settings_of(cls))
    path = next((s.path for s in settings if s.path == location[: len(s.path)]), None)
    if path is None:  # a group that is missing as a whole is missing what it requires
        inside = (s.path for s in settings if s.path[: len(location)] == location and s.default is dataclasses.MISSING)
        path = next(inside, tuple(str(part) for part in location))
    return f"{env_name_of(cls, path)}: {message}"


def _listed(problems: typing.Iterable[str]) -> str:
    return "invalid settings\n  " + "\n  ".join(problems)
