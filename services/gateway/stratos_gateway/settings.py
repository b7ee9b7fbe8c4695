"""Settings of the gateway, read from ``STRATOS_GATEWAY_*``."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, SecretStr, field_validator

from stratos.core.files.embedding_files import MatryoshkaSetting, PoolingSetting
from stratos.core.requests.convictions import ConvictionConfig
from stratos.rpc.clients.router_addresses import split_address
from stratos.rpc.settings import ServiceSettings
from stratos.store.keys import DEFAULT_PEPPER_ID
from stratos.store.records.settings import RecordStoreConfig, SnapshotConfig
from stratos_gateway.http.limits import HttpLimits
from stratos_gateway.models.watermark_policy import WatermarkConfig
from stratos_gateway.routers.config import RoutersConfig
from stratos_gateway.sessions.liveness import SessionConfig


class GatewaySettings(ServiceSettings):
    """One gateway process, one base model."""

    env_prefix = "STRATOS_GATEWAY_"

    http_listen: str = "127.0.0.1:8000"
    """host:port of the OpenAI API; port 0 picks a free one."""
    http_listener_fd: int | None = Field(None, ge=0)
    """Inherited listening socket to take connections from instead, shared with other gateways: `stratos up` has one."""
    model_path: Path
    """Folder of the base model: tokenizer, chat template, and the files that its digest is made of."""
    model_digest: str = ""
    """Digest of the model folder and state of its files, as `stratos up` hands it over; empty: computed at start."""
    model_name: str = ""
    """Name that clients use as "model"; empty takes the folder's name."""
    max_input_tokens: int = Field(4096, ge=1)
    """Longest prompt; longer ones get 400 context_length_exceeded."""
    max_stream_len: int = Field(0, ge=0)
    """Longest sequence where workers stream past the model's context (their attention_window); 0 is that context."""
    default_max_tokens: int = Field(512, ge=1)
    """Output limit of a chat request that names none."""
    pooling: PoolingSetting = "auto"
    """How embeddings are pooled: "auto" takes what the model folder says, else the last token; "off" serves none."""
    matryoshka: MatryoshkaSetting = "auto"
    """Whether embeddings may be cut to fewer dimensions: "auto" asks config.json (is_matryoshka)."""
    embedding_timeout_s: float = Field(60.0, gt=0)
    """Longest time of one embeddings request."""
    router_addresses: tuple[str, ...] = Field(min_length=1)
    """host:port of the routers; a host name, such as that of a headless Service, stands for all its addresses."""
    redis_url: SecretStr
    """Where tenants, API keys and adapters are; secret because it may hold a password."""
    key_pepper: SecretStr
    """Secret under which API keys are hashed; the same one that made the keys."""
    key_pepper_id: str = DEFAULT_PEPPER_ID
    """Id of that secret, which each key made under it names."""
    older_key_peppers: dict[str, SecretStr] = Field(default_factory=dict)
    """Secrets of earlier ids by id, as JSON: keys made under them still work."""
    max_open_requests: int = Field(512, ge=1)
    """Requests open at once; more get 503 overloaded at once."""
    max_open_requests_per_tenant: int = Field(128, ge=1)
    """Requests that one tenant may have open at once; more get 429 concurrency_limit."""
    placement_timeout_s: float = Field(60.0, gt=0)
    """Longest time without an output token, from a request's arrival or its last token, over all its attempts."""
    zone: str = ""
    """Where it runs, for the scorer and the filter of this name at the router."""
    max_block_names: int = Field(128, ge=0, le=4096)
    """Blocks of a prompt whose salted names the router gets, where its policies look at prefix caches; 0 is off."""
    trace_sample_ratio: float = Field(1.0, ge=0, le=1)
    """Share of requests without a traceparent that get a trace; a traceparent has a flag for it."""
    health_interval_s: float = Field(5.0, gt=0)
    """/health runs at most one inference in this time."""
    health_timeout_s: float = Field(10.0, gt=0)
    """An inference for /health that takes longer means broken."""

    records: RecordStoreConfig = RecordStoreConfig()
    snapshot: SnapshotConfig = SnapshotConfig()
    http: HttpLimits = HttpLimits()
    sessions: SessionConfig = SessionConfig()
    routers: RoutersConfig = RoutersConfig()
    convictions: ConvictionConfig = ConvictionConfig()
    watermark: WatermarkConfig = WatermarkConfig()

    @field_validator("router_addresses")
    @classmethod
    def _check_addresses(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for address in value:
            split_address(address)
        return value
