"""Settings of the lora-registry, from ``STRATOS_LORA_REGISTRY_*``."""

from __future__ import annotations

from pydantic import SecretStr

from stratos.rpc.settings import ServiceSettings
from stratos.store.records.settings import RecordStoreConfig
from stratos.store.settings import ObjectStoreConfig
from stratos_lora_registry.registrar import RegistrarConfig


class LoraRegistrySettings(ServiceSettings):
    """Where metadata and weights are kept, and the bounds of registrations."""

    env_prefix = "STRATOS_LORA_REGISTRY_"

    redis_url: SecretStr = SecretStr("redis://127.0.0.1:6379/0")
    """Where metadata is kept: redis://, rediss:// (TLS) or redis+sentinel:// with user and password, which is why it is
    secret; see docs/operations.md for the forms."""

    records: RecordStoreConfig = RecordStoreConfig()
    object_store: ObjectStoreConfig
    registrar: RegistrarConfig = RegistrarConfig()
