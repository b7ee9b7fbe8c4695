"""Redis and an S3 service of a test's own, to take away and bring back."""

from __future__ import annotations

import shutil
from pathlib import Path

import boto3
import pytest
from botocore.config import Config
from moto.server import ThreadedMotoServer

from tests.support.servers.redis_server import RedisServer, free_port

BUCKET = "weights"


class Stores:
    """Both, at addresses that stay; what they hold stays as well, unless Redis is emptied.

    Args:
        folder: of Redis.
        patch: sets the credentials of S3 in the environment.
    """

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "testing")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        self._folder, self._s3_port = folder, free_port()
        self._redis, self._s3 = RedisServer(folder), self._new_s3()
        self.redis_url, self.s3_url = self._redis.url, f"http://127.0.0.1:{self._s3_port}"

    def _new_s3(self) -> ThreadedMotoServer:
        return ThreadedMotoServer("127.0.0.1", self._s3_port, verbose=False)

    def start(self) -> None:
        """Start both, with an empty bucket."""
        self._redis.start()
        self._s3.start()
        style = Config(s3={"addressing_style": "path"})
        client = boto3.session.Session().client("s3", endpoint_url=self.s3_url, region_name="us-east-1", config=style)
        client.create_bucket(Bucket=BUCKET)
        client.close()

    def take_away(self) -> None:
        """Neither answers any more."""
        self._redis.kill()
        self._s3.stop()

    def bring_back(self) -> None:
        """Both, with what they held."""
        self._redis.start()
        self._s3 = self._new_s3()  # its objects live in this process
        self._s3.start()

    def bring_back_redis_empty(self) -> None:
        """Redis dies and starts at its address with nothing."""
        self._redis.kill()
        shutil.rmtree(self._folder)
        self._folder.mkdir()
        self._redis.start()

    def close(self) -> None:
        self._redis.close()
        self._s3.stop()
