"""A running gateway gives back the store that it follows."""

from __future__ import annotations

import json

import httpx

from tests.support.waiting import LIMIT_S
from tests.support.worlds.platform_process import PlatformProcess


def test_a_store_is_adopted_from_a_running_gateway(platform: PlatformProcess) -> None:
    """Its copy has MACs of keys, so it is given to gateways alone; the command shows such a certificate."""
    address = json.loads((platform.run_dir() / "gateway-1.address.json").read_text())["address"]
    key = platform.stratos("keys", "create", "--tenant", "adopted").stdout.strip()
    assert "the store is" in platform.stratos("admin", "adopt-store", "--gateway", address).stdout
    headers = {"authorization": f"Bearer {key}"}
    assert httpx.get(f"{platform.base_url}/models", headers=headers, timeout=LIMIT_S).status_code == 200
