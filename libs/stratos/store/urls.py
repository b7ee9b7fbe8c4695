"""Which store a URL names."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from stratos.common.errors import BadRequest, DependencyDown
from stratos.store.local_store import LocalStore
from stratos.store.object_store import ObjectStore


def open_store(
    url: str, *, s3_endpoint_url: str = "", s3_region: str = "", timeout_s: float = 2.0, num_attempts: int = 2
) -> ObjectStore:
    """Open the store that ``url`` names: ``file:///folder`` or ``s3://bucket/prefix``. Nothing is contacted yet.

    Args:
        url: see above.
        s3_endpoint_url: of an S3-compatible server; empty means Amazon's.
        s3_region: of the bucket; empty leaves it to boto3's own configuration, as are the credentials.
        timeout_s: longest silence of an S3 server.
        num_attempts: tries of an S3 request, the first included.

    Raises:
        BadRequest: another scheme, or no bucket or folder.
        DependencyDown: S3 is asked for and boto3 is not installed.
    """
    parts = urlsplit(url)
    if parts.scheme == "file" and parts.netloc in ("", "localhost") and parts.path.startswith("/"):
        return LocalStore(Path(unquote(parts.path)))
    if parts.scheme == "s3" and parts.netloc:
        try:
            from stratos.store.s3_store import S3Config, S3Store
        except ImportError as error:
            raise DependencyDown("an s3:// object store needs boto3: pip install boto3") from error
        prefix = parts.path.strip("/")
        config = S3Config(
            bucket=parts.netloc,
            prefix=f"{prefix}/" if prefix else "",
            endpoint_url=s3_endpoint_url,
            region=s3_region,
            timeout_s=timeout_s,
            num_attempts=num_attempts,
        )
        return S3Store(config)
    raise BadRequest(f"object store URL {url!r} must be file:///folder or s3://bucket/prefix", param="object_store_url")
