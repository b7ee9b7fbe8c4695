"""A real S3 protocol server on loopback, with one bucket."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import boto3
import pytest
from botocore.config import Config
from moto.server import ThreadedMotoServer

BUCKET = "weights"


@contextmanager
def s3_server() -> Iterator[str]:
    """Its URL; credentials are in the environment of this process and of those it starts."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "testing")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        server.start()
        host, port = server.get_host_and_port()
        url = f"http://{host}:{port}"
        client = boto3.session.Session().client(
            "s3", endpoint_url=url, region_name="us-east-1", config=Config(s3={"addressing_style": "path"})
        )
        client.create_bucket(Bucket=BUCKET)
        client.close()
        yield url
        server.stop()
