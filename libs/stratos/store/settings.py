"""How an object store is reached; the settings of the services that open one hold this."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Gt


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectStoreConfig:
    """Where adapters, and segments of the ledger, are kept."""

    url: str
    """file:///folder or s3://bucket/prefix. No default: a wrong store would refuse every adapter."""
    s3_endpoint_url: str = ""
    """Endpoint of an S3-compatible server; empty takes Amazon's."""
    s3_region: str = ""
    """Region of the bucket; empty leaves it to boto3's own configuration, as are the credentials."""
    timeout_s: Annotated[float, Gt(0)] = 2.0
    """Longest silence of an S3 server."""
