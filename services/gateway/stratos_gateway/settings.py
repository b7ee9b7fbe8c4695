"""Settings of the gateway, read from ``STRATOS_GATEWAY_*``."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, SecretStr, field_validator

from stratos.core.files.embedding_files import MatryoshkaSetting, PoolingSetting
from stratos.core.requests.limits import MAX_BODY_BYTES
from stratos.core.requests.watermark import MAX_CONTEXT_TOKENS, MAX_DELTA, MAX_KEY_BYTES, MIN_KEY_BYTES
from stratos.rpc.settings import ServiceSettings


class GatewaySettings(ServiceSettings):
    """One gateway process, one base model."""

    env_prefix = "STRATOS_GATEWAY_"

    http_listen: str = "127.0.0.1:8000"
    """host:port of the OpenAI API; port 0 picks a free one."""
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
    router_address: str
    """host:port of the router."""
    registry_address: str = ""
    """host:port of the lora-registry; empty serves the base model alone."""
    redis_url: SecretStr
    """Where the API keys are; secret because it may hold a password."""
    key_pepper: SecretStr
    """Secret under which API keys are hashed; the same one that made the keys."""
    watermark_key: SecretStr = SecretStr("")
    """Secret, 16 to 64 bytes, under which output is watermarked; empty marks nothing. The detector needs it."""
    watermark_gamma: float = Field(0.25, ge=0.001, le=0.999)
    """Share of the vocabulary that the watermark favours at each place."""
    watermark_delta: float = Field(2.0, gt=0, le=MAX_DELTA)
    """Added to the logits of favoured tokens: more is easier to detect and changes text more."""
    watermark_context_tokens: int = Field(1, ge=1, le=MAX_CONTEXT_TOKENS)
    """Tokens before a place that decide which ones it favours."""
    watermark_tenants: list[str] = Field(default_factory=list)
    """Tenants whose output is marked; empty means all."""
    watermark_models: list[str] = Field(default_factory=list)
    """Names of models and adapters whose output is marked; empty means all."""
    max_open_requests: int = Field(512, ge=1)
    """Requests open at once; more get 503 overloaded at once."""
    max_open_requests_per_tenant: int = Field(128, ge=1)
    """Requests that one tenant may have open at once; more get 429 concurrency_limit."""
    max_body_bytes: int = Field(MAX_BODY_BYTES, ge=1)
    """Largest request body."""
    head_timeout_s: float = Field(10.0, gt=0)
    """Longest time a client may take to send the request line and headers."""
    body_timeout_s: float = Field(10.0, gt=0)
    """Longest time a client may take to send its body."""
    write_timeout_s: float = Field(30.0, gt=0)
    """A stream whose client takes nothing for this long is cancelled."""
    placement_timeout_s: float = Field(60.0, gt=0)
    """Longest wait for a placement, over all attempts before the first token."""
    connect_timeout_s: float = Field(2.0, gt=0)
    """Longest wait for a decode worker's Welcome."""
    silence_timeout_s: float = Field(1.5, gt=0)
    """A session without any message for this long is broken; workers speak every 0.25 s."""
    step_timeout_s: float = Field(3.0, gt=0)
    """A worker that says it computes and whose step stands still this long is hung (at least 4 of its slow steps)."""
    adapter_refresh_s: float = Field(1.0, gt=0)
    """Age up to which a tenant's list of adapters is used without asking the registry."""
    trace_sample_ratio: float = Field(1.0, ge=0, le=1)
    """Share of requests without a traceparent that get a trace; a traceparent says by itself whether it wants one."""
    health_interval_s: float = Field(5.0, gt=0)
    """/health runs at most one inference in this time."""
    health_timeout_s: float = Field(10.0, gt=0)
    """An inference for /health that takes longer means broken."""

    @field_validator("watermark_key")
    @classmethod
    def _check_watermark_key(cls, key: SecretStr) -> SecretStr:
        size = len(key.get_secret_value().encode())
        if size and not MIN_KEY_BYTES <= size <= MAX_KEY_BYTES:
            raise ValueError(f"must have {MIN_KEY_BYTES} to {MAX_KEY_BYTES} bytes, or be empty")
        return key
