"""The platform with the other implementation of each contract: Redis elsewhere, adapters in S3, KV over Gloo."""

from __future__ import annotations

from collections.abc import Iterator

import boto3
import openai
import pytest
import redis

from tests.support.paths import BASE_MODEL
from tests.support.servers.redis_server import RedisServer, running_redis
from tests.support.servers.s3_server import BUCKET, s3_server
from tests.support.waiting import LIMIT_S
from tests.support.worlds.platform_process import PlatformProcess, running_platform

PROMPT = "def test_reader(self):\n" * 12


@pytest.fixture(scope="module")
def redis_elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with running_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="module")
def s3_url() -> Iterator[str]:
    with s3_server() as url:
        yield url


@pytest.fixture(scope="module")
def platform(
    tmp_path_factory: pytest.TempPathFactory, redis_elsewhere: RedisServer, s3_url: str
) -> Iterator[PlatformProcess]:
    store = ("--object-store", f"s3://{BUCKET}/models", "--s3-endpoint", s3_url)
    flags = ("--redis-url", redis_elsewhere.url, "--transport", "gloo", "--max-decode", "1")
    with running_platform(tmp_path_factory.mktemp("platform"), *store, *flags) as running:
        yield running


@pytest.mark.slow
def test_adapters_from_s3_and_kv_over_gloo_give_the_same_tokens(
    real_platform: PlatformProcess, platform: PlatformProcess
) -> None:
    assert answer(platform) == answer(real_platform)
    metrics = {worker["role"]: worker["engine_step"] for worker in platform.status()["workers"]}
    assert metrics["prefill"] > 1, "the prompt was not computed in the prefill worker"


def test_an_external_redis_is_used_and_stays(platform: PlatformProcess, redis_elsewhere: RedisServer) -> None:
    assert "redis" not in platform.processes()
    assert platform.facts()["redis_url"] == redis_elsewhere.url
    assert platform.api_key.split("-")[1] in platform.stratos("keys", "list").stdout


def test_adapters_go_to_an_s3_store(platform: PlatformProcess, s3_url: str) -> None:
    adapter, name = str(BASE_MODEL.parent / "adapters" / "c-headers"), "registered-by-hand"
    listing = ("adapters", "list", "--tenant")
    assert "rank 8" in platform.stratos("adapters", "register", name, adapter, "--tenant", "default").stdout
    assert name in platform.stratos(*listing, "default").stdout
    assert name not in platform.stratos(*listing, "other").stdout
    client = boto3.client("s3", endpoint_url=s3_url, region_name="us-east-1")
    keys = [item["Key"] for item in client.list_objects_v2(Bucket=BUCKET, Prefix="models/")["Contents"]]
    client.close()
    assert any(name in key for key in keys)
    names = {"adapter_config.json", "adapter_model.safetensors", "manifest.json"}
    assert {key.rsplit("/")[-1] for key in keys} == names
    platform.stratos("adapters", "delete", name, "--tenant", "default")
    assert name not in platform.stratos(*listing, "default").stdout


def test_its_end_leaves_the_external_redis_alone(platform: PlatformProcess, redis_elsewhere: RedisServer) -> None:
    # Last in this file: it ends the shared platform.
    assert platform.stop() == 0
    with redis.Redis.from_url(redis_elsewhere.url) as client:
        assert client.ping()


def answer(platform: PlatformProcess) -> str:
    client = openai.OpenAI(base_url=platform.base_url, api_key=platform.api_key, max_retries=0, timeout=LIMIT_S)
    with client:
        text = client.completions.create(model="unit-tests", prompt=PROMPT, max_tokens=40, temperature=0)
    return text.choices[0].text
