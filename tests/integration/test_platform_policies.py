"""A content policy on a whole platform: records in its Redis, its own gateway, router and workers."""

from __future__ import annotations

import asyncio
import json

import httpx

from stratos.cli.stores import open_records
from stratos.core.tenancy.content import ContentPolicy, PromptTemplate, PromptVersion
from stratos.store.records.writer import RecordWriter
from stratos.store.tenant_store import TenantStore
from stratos_gateway.admin.content_records import ContentRecords
from tests.support.platform_process import PlatformProcess
from tests.support.waiting import wait_until

POLICY = ContentPolicy(words={"w": ("blue heron",)}, patterns={"eight": "[a-z]{8}"}, replacement="[cut]")
TEMPLATE = PromptTemplate(versions={1: PromptVersion(text="The {{ bird }}")})


async def store(platform: PlatformProcess) -> None:
    async with open_records(platform.facts()["redis_url"]) as records:
        writer = RecordWriter(records, actor="test")
        content, tenants = ContentRecords(writer), TenantStore(writer)
        await content.put_policy("platform-test", POLICY)
        await content.put_template("policed/bird", TEMPLATE)
        overrides = {"content_policy": "platform-test"}
        await tenants.put("policed", plan="standard", overrides=overrides, is_suspended=False)


def test_input_is_refused_and_a_stream_ends_at_a_hit(real_platform: PlatformProcess) -> None:
    made = real_platform.stratos("keys", "create", "--tenant", "policed", "--name", "policies").stdout
    key = next(word for word in made.split() if word.startswith("sk-"))
    asyncio.run(store(real_platform))
    headers = {"authorization": f"Bearer {key}"}
    with httpx.Client(base_url=real_platform.base_url, headers=headers, timeout=60) as client:

        def ask(prompt: object, **body: object) -> httpx.Response:
            asked = {"model": "base", "prompt": prompt, "max_tokens": 64, "temperature": 0, "ignore_eos": True, **body}
            return client.post("/completions", json=asked)

        wait_until(lambda: ask("a Blue Heron", max_tokens=1).status_code == 400, what="the policy acts")
        templated = {"id": "bird", "variables": {"bird": "blue heron"}}
        assert ask(templated).json()["error"]["code"] == "content_filter"
        whole = ask("The story of a").json()
        assert (whole["choices"][0]["text"], whole["choices"][0]["finish_reason"]) == ("[cut]", "content_filter")
        assert 0 < whole["usage"]["completion_tokens"] < 64, "the worker was told to stop"
        with client.stream(
            "POST",
            "/completions",
            json={
                "model": "base",
                "prompt": "The story of a",
                "max_tokens": 64,
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
            },
        ) as answer:
            lines = [line[6:] for line in answer.iter_lines() if line.startswith("data: {")]
        choices = [json.loads(line)["choices"][0] for line in lines]
        assert "".join(choice["text"] for choice in choices).endswith("[cut]")
        assert choices[-1]["finish_reason"] == "content_filter"
