"""Settings of the lora-registry, from ``STRATOS_LORA_REGISTRY_*``."""

from __future__ import annotations

from pydantic_settings import SettingsConfigDict

from stratos.rpc.settings import ServiceSettings


class LoraRegistrySettings(ServiceSettings):
    """See ``ServiceSettings`` for the fields that every service has."""

    model_config = SettingsConfigDict(env_prefix="STRATOS_LORA_REGISTRY_")

    redis_url: str = "redis://127.0.0.1:6379/0"
    """Where metadata is kept; a password in it is masked in the log."""
    object_store_url: str
    """file:///folder or s3://bucket/prefix. No default: a wrong store would refuse every adapter."""
    s3_endpoint_url: str = ""
    """Endpoint of an S3-compatible server; empty means Amazon's."""
    s3_region: str = ""
    """Region of the bucket; empty leaves it to boto3's configuration, as are the credentials."""
    reserved_names: tuple[str, ...] = ("base",)
    """Names no adapter may take, because clients use them for base models."""
    max_adapter_bytes: int = 2 * 1024**3
    """Largest adapter: rank 256 on every projection of an 8 B model in bf16 stays below."""
    max_registrations: int = 4
    """Registrations that read weights at the same time; more are refused, since each takes disk and bandwidth."""
    work_folder: str = ""
    """Where weights lie while they are checked; empty takes the system's folder for temporary files."""
