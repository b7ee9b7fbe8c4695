"""Settings of the gateway, read from ``STRATOS_GATEWAY_*``."""

from __future__ import annotations

from pydantic import Field, SecretStr, field_validator

from stratos.core.requests.convictions import ConvictionConfig
from stratos.rpc.clients.peer_addresses import split_address
from stratos.rpc.settings import ServiceSettings
from stratos.store.data_keys import DEFAULT_PLATFORM_KEY_ID
from stratos.store.keys import DEFAULT_PEPPER_ID
from stratos.store.records.settings import RecordStoreConfig, SnapshotConfig
from stratos.store.settings import ObjectStoreConfig
from stratos_gateway.access.settings import RequestsConfig
from stratos_gateway.admin.settings import AdminConfig
from stratos_gateway.batches.settings import BatchesConfig
from stratos_gateway.choices.settings import ChoicesConfig
from stratos_gateway.continuations.settings import ContinuationsConfig
from stratos_gateway.files.settings import FilesConfig
from stratos_gateway.http.limits import HttpLimits
from stratos_gateway.http.settings import EdgeConfig, HttpTlsConfig, check_edge
from stratos_gateway.ledger.settings import LedgerConfig
from stratos_gateway.limits.settings import LimitsConfig
from stratos_gateway.models.settings import ModelConfig, ModelRecordsConfig
from stratos_gateway.models.watermark_policy import WatermarkConfig
from stratos_gateway.observe.settings import ObserveConfig
from stratos_gateway.oidc.settings import OidcConfig, check_oidc
from stratos_gateway.overflow.settings import OverflowConfig
from stratos_gateway.policies.settings import ContentPoliciesConfig
from stratos_gateway.responses.settings import ResponsesConfig
from stratos_gateway.rollouts.settings import RolloutsConfig
from stratos_gateway.routers.settings import RoutersConfig
from stratos_gateway.routes.settings import HealthConfig
from stratos_gateway.sessions.liveness import SessionConfig
from stratos_gateway.sockets.settings import SocketsConfig
from stratos_gateway.streams.settings import StreamsConfig


class GatewaySettings(ServiceSettings):
    """One gateway process, and the base models that it serves."""

    env_prefix = "STRATOS_GATEWAY_"

    http_listen: str = "127.0.0.1:8000"
    """host:port of the OpenAI API; port 0 picks a free one."""
    http_listener_fd: int | None = Field(None, ge=0)
    """Inherited listening socket to take connections from instead, shared with other gateways: `stratos up` has one."""
    router_addresses: tuple[str, ...] = Field(min_length=1)
    """host:port of the routers; a host name, such as that of a headless Service, stands for all its addresses."""
    redis_url: SecretStr
    """Where tenants, API keys and adapters are: redis://, rediss:// (TLS) or redis+sentinel:// with user and password,
    which is why it is secret; see docs/operations.md for the forms."""
    key_pepper: SecretStr
    """Secret under which API keys are hashed; the same one that made the keys."""
    key_pepper_id: str = DEFAULT_PEPPER_ID
    """Id of that secret, which each key made under it names."""
    older_key_peppers: dict[str, SecretStr] = Field(default_factory=dict)
    """Secrets of earlier ids by id, as JSON: keys made under them still work."""
    platform_key: SecretStr = SecretStr("")
    """Secret that wraps the data keys of tenants, 32 bytes as hexadecimal digits or base64: keep it where Redis, copies
    and backups are not. The same one at every gateway; empty: nothing that needs a data key is kept."""
    platform_key_id: str = DEFAULT_PLATFORM_KEY_ID
    """Id of that secret, which each data key wrapped under it names."""
    older_platform_keys: dict[str, SecretStr] = Field(default_factory=dict)
    """Secrets of earlier ids by id, as JSON: data keys wrapped under them still open, until they are wrapped again."""
    object_store: ObjectStoreConfig | None = None
    """Where entries of the ledger go after a while, and large responses at once, the same at every gateway; unset keeps
    them in Redis alone."""
    zone: str = ""
    """Where it runs, for the scorer and the filter of this name at the router."""
    region: str = ""
    """Region around that, for the scorer and the filter of this name at the router."""
    max_block_names: int = Field(128, ge=0, le=4096)
    """Blocks of a prompt whose salted names the router gets, where its policies look at prefix caches; 0 is off."""
    trace_sample_ratio: float = Field(1.0, ge=0, le=1)
    """Share of requests that get a trace; one whose traceparent is not sampled gets none."""
    trace_sampled_by_clients: bool = False
    """A request whose traceparent is sampled gets a trace whatever the share is: for callers that you trust with it."""
    model: ModelConfig
    more_models: tuple[ModelConfig, ...] = ()
    """Further base models of this gateway, as JSON: objects with the fields of `model`, of which `path` must be there.
    All gateways of a deployment have the same `model`, which a request without a name means, and the same others."""
    model_records: ModelRecordsConfig = ModelRecordsConfig()
    rollouts: RolloutsConfig = RolloutsConfig()
    choices: ChoicesConfig = ChoicesConfig()
    requests: RequestsConfig = RequestsConfig()
    limits: LimitsConfig = LimitsConfig()
    ledger: LedgerConfig = LedgerConfig()
    admin: AdminConfig = AdminConfig()
    oidc: OidcConfig = OidcConfig()
    health: HealthConfig = HealthConfig()
    records: RecordStoreConfig = RecordStoreConfig()
    snapshot: SnapshotConfig = SnapshotConfig()
    http: HttpLimits = HttpLimits()
    observe: ObserveConfig = ObserveConfig()
    http_tls: HttpTlsConfig | None = None
    edge: EdgeConfig = EdgeConfig()
    sessions: SessionConfig = SessionConfig()
    routers: RoutersConfig = RoutersConfig()
    convictions: ConvictionConfig = ConvictionConfig()
    watermark: WatermarkConfig = WatermarkConfig()
    responses: ResponsesConfig = ResponsesConfig()
    sockets: SocketsConfig = SocketsConfig()
    streams: StreamsConfig = StreamsConfig()
    continuations: ContinuationsConfig = ContinuationsConfig()
    files: FilesConfig = FilesConfig()
    batches: BatchesConfig = BatchesConfig()
    policies: ContentPoliciesConfig = ContentPoliciesConfig()
    overflow: OverflowConfig = OverflowConfig()

    @property
    def all_models(self) -> tuple[ModelConfig, ...]:
        """The base models, the first one first."""
        return self.model, *self.more_models

    @field_validator("snapshot")
    @classmethod
    def _check_peers(cls, value: SnapshotConfig) -> SnapshotConfig:
        for address in value.peers:
            split_address(address)
        return value

    @field_validator("edge")
    @classmethod
    def _check_edge(cls, value: EdgeConfig) -> EdgeConfig:
        check_edge(value)
        return value

    @field_validator("oidc")
    @classmethod
    def _check_oidc(cls, value: OidcConfig) -> OidcConfig:
        check_oidc(value)
        return value

    @field_validator("router_addresses")
    @classmethod
    def _check_addresses(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for address in value:
            split_address(address)
        return value
