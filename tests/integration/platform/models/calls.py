"""Ways to a platform for the tests of this folder: its clients, its commands, its admin API."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from typer.testing import CliRunner

from stratos.cli.main import app
from tests.support.waiting import LIMIT_S
from tests.support.worlds.platform_process import PlatformProcess


@asynccontextmanager
async def client_of(platform: PlatformProcess) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"authorization": f"Bearer {platform.facts()['api_key']}"}
    async with httpx.AsyncClient(base_url=platform.base_url, headers=headers, timeout=None, trust_env=False) as client:
        yield client


async def stratos(platform: PlatformProcess, *arguments: str) -> str:
    """Output of a command, which must succeed; in a thread of its own, as if in a process of its own."""
    given = [*arguments, "--data-dir", str(platform.data_dir)]
    result = await asyncio.to_thread(CliRunner().invoke, app, given)
    assert result.exit_code == 0, result.output
    return result.output


async def refused(platform: PlatformProcess, *arguments: str) -> str:
    """Output of a command that must fail with a line of ours."""
    given = [*arguments, "--data-dir", str(platform.data_dir)]
    result = await asyncio.to_thread(CliRunner().invoke, app, given)
    assert (result.exit_code, "error: " in result.output) == (1, True), result.output
    return result.output


async def admin_key(platform: PlatformProcess) -> str:
    return (await stratos(platform, "keys", "create", "--tenant", "platform", "--role", "admin")).strip()


async def pids_of(platform: PlatformProcess) -> dict[str, int]:
    return {name: process["pid"] for name, process in (await asyncio.to_thread(platform.processes)).items()}


@dataclass(frozen=True, slots=True)
class Admin:
    """The admin API of whichever gateway takes the connection, and what it says of roll-outs."""

    platform: PlatformProcess
    key: str

    async def call(self, method: str, path: str, body: Any = None) -> httpx.Response:
        url, headers = self.platform.facts()["admin_url"], {"authorization": f"Bearer {self.key}"}
        async with httpx.AsyncClient(headers=headers, timeout=LIMIT_S, trust_env=False) as client:
            return await client.request(method, f"{url}/admin/v1{path}", json=body)

    async def rollout(self, model: str) -> dict[str, Any]:
        """The roll-out of a model; nothing is known while a gateway that was killed had the connection."""
        try:
            answer = await self.call("GET", f"/rollouts/{model}")
        except httpx.TransportError:
            return {}
        return answer.json() if answer.is_success else {}

    async def is_at(self, model: str, phase: str, percent: int) -> bool:
        """Whether a roll-out is there, with its weights written."""
        found = await self.rollout(model)
        return (found.get("phase"), found.get("percent"), found.get("is_applied")) == (phase, percent, True)

    async def revisions(self, model: str) -> dict[str, dict[str, Any]]:
        """Revisions of a model at a gateway, by digest, the one that was added last at the end."""
        rows = (await self.call("GET", "/models")).json()["data"]
        return {row["digest"]: row for row in rows if row["name"] == model}
