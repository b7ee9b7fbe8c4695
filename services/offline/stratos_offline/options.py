"""Options of a job: records that travel to every engine as JSON."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from stratos.common.errors import BadRequest
from stratos.store.settings import ObjectStoreConfig

MAX_ENGINES = 1024
STORE_ATTEMPTS = 6
"""Tries of a request of a store in S3: a short outage does not end a night's work."""
ECHO = "echo"
"""Engine that computes nothing, to measure what is around engines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """Make of every engine of a job."""

    model_path: str
    """Folder of the model, the same at every node."""
    model_name: str = ""
    """Name that lines use; empty takes the folder's."""
    engine: Literal["torch", "fake", "echo"] = "torch"
    device: Literal["cpu", "cuda"] = "cpu"
    dtype: str = "auto"
    quantization: str = "auto"
    kv_cache_dtype: str = "auto"
    max_model_len: int = 0
    max_input_tokens: int = 4096
    """Longest prompt, as the gateways of a platform have it."""
    kv_pool_bytes: int = 0
    """0 lets each engine choose for itself."""
    threads: int = 1
    """Cores of each engine."""
    lines_at_once: int = 32
    """Most lines that an engine computes at a time."""

    @property
    def served_name(self) -> str:
        """Name that lines use as "model"."""
        return self.model_name or Path(self.model_path).resolve().name

    @property
    def result_facts(self) -> dict[str, Any]:
        """Facts that decide results; what decides speed alone is not among them."""
        left = {"model_path", "model_name", "kv_pool_bytes", "threads", "lines_at_once"}
        return {"name": self.served_name, **{name: value for name, value in asdict(self).items() if name not in left}}


@dataclass(frozen=True, slots=True, kw_only=True)
class LineIdentity:
    """Source of ids and seeds of lines, as it is of a batch's."""

    name: str
    """Id of the batch: line N is NAME-N."""
    created_unix_s: int
    salt: str = ""
    """Cache salt of the tenant as hexadecimal digits: with it, and the name, lines are those of a platform's batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineAsk:
    """Everything that an engine's process has to know."""

    engine: EngineOptions
    identity: LineIdentity
    store: ObjectStoreConfig

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))

    @staticmethod
    def parse(text: str) -> EngineAsk:
        """From that line."""
        value = json.loads(text)
        return EngineAsk(
            engine=EngineOptions(**value["engine"]),
            identity=LineIdentity(**value["identity"]),
            store=ObjectStoreConfig(**value["store"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """One run of one file."""

    file: str
    out: str
    """Folder of the results."""
    engine: EngineOptions
    name: str = ""
    """Id of the batch that lines are named after; empty: from the file's digest."""
    salt: str = ""
    store_url: str = ""
    """Where blocks are kept; empty: in ``out``."""
    s3_endpoint: str = ""
    block_lines: int = 256
    min_engines: int = 1
    max_engines: int = 1
    ray: str = ""
    """"local", or the address of a cluster; empty computes in processes of this machine."""
    allow_open_cluster: bool = False
    """A cluster without token authentication is taken."""

    def __post_init__(self) -> None:
        for name, value, least, most in (
            ("--engines", self.max_engines, 1, MAX_ENGINES),
            ("--min-engines", self.min_engines, 1, self.max_engines),
            ("--max-input-tokens", self.engine.max_input_tokens, 1, 10_000_000),
            ("--block-lines", self.block_lines, 1, 100_000),
            ("--threads", self.engine.threads, 1, 1024),
            ("--lines-at-once", self.engine.lines_at_once, 1, 4096),
        ):
            if not least <= value <= most:
                raise BadRequest(f"{name} must be between {least} and {most}, not {value}", param=name)
        if self.salt and not _is_hex(self.salt):
            raise BadRequest("the salt must be hexadecimal digits, two for a byte", param="salt")

    @staticmethod
    def parse(text: str, salt: str = "") -> JobOptions:
        """From JSON of the command line, and the salt; raises ``BadRequest`` for what it does not know."""
        try:
            value = json.loads(text)
            unknown = set(value) - {field.name for field in fields(JobOptions)}
            if unknown:
                raise BadRequest(f"unknown options: {', '.join(sorted(unknown))}")
            return JobOptions(**{**value, "salt": salt, "engine": EngineOptions(**value["engine"])})
        except (ValueError, TypeError, KeyError) as error:
            raise BadRequest(f"the options are no job: {error}") from error

    def store(self, job: str) -> ObjectStoreConfig:
        """Where this job's blocks are.

        Args:
            job: digest of what decides results.
        """
        url = f"{self.store_url.rstrip('/')}/offline-{job[:16]}" if self.store_url else self.own_store(job).as_uri()
        return ObjectStoreConfig(url=url, s3_endpoint_url=self.s3_endpoint, timeout_s=30.0)

    def own_store(self, job: str) -> Path:
        """Folder of a job's blocks where no store is named."""
        return Path(self.out).resolve() / f"blocks-{job[:16]}"


def digest_of(*parts: str | bytes) -> str:
    """A digest of parts, each with its length, so that no two lists of them are one text."""
    found = hashlib.blake2b(digest_size=20)
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        found.update(len(data).to_bytes(8, "big") + data)
    return found.hexdigest()


def _is_hex(text: str) -> bool:
    try:
        return bool(bytes.fromhex(text))
    except ValueError:
        return False
