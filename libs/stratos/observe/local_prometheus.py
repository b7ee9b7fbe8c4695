"""A Prometheus beside ``stratos up``: its files, its command, and where its binary is.

The targets are a file that the supervisor writes again whenever processes change; Prometheus follows it by itself.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from stratos.common.errors import DependencyDown
from stratos.observe.rule_files import rules_text

DEBIAN_PATH = Path("/usr/bin/prometheus")
SCRAPE_INTERVAL = "2s"
"""A laptop's processes answer within milliseconds, and people want to see what they just did."""
RELEASE = "local"
MISSING = (
    "--observe needs Prometheus, and there is none on PATH or at /usr/bin/prometheus: install it "
    "(`apt-get install prometheus` on Debian), or leave --observe away"
)


def find_prometheus(path: str | None = None) -> Path:
    """The binary.

    Raises:
        DependencyDown: there is none.
    """
    found = shutil.which("prometheus", path=path)
    if found:
        return Path(found)
    if path is None and DEBIAN_PATH.is_file():
        return DEBIAN_PATH
    raise DependencyDown(MISSING)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalPrometheus:
    """Where it listens and keeps its files; all of them end with the run."""

    binary: Path
    folder: Path
    targets_file: Path
    port: int

    @property
    def address(self) -> str:
        """host:port of its page and API."""
        return f"127.0.0.1:{self.port}"

    def write_files(self) -> None:
        """Write configuration and rules."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        (self.folder / "rules.yaml").write_text(rules_text(interval=SCRAPE_INTERVAL), encoding="utf-8")
        (self.folder / "prometheus.yaml").write_text(scrape_config(self.targets_file), encoding="utf-8")

    def argv(self) -> tuple[str, ...]:
        """It ends with this process, however that ends."""
        return (
            sys.executable, "-m", "stratos.cli.local.guard", str(os.getpid()), "--", str(self.binary),
            f"--config.file={self.folder / 'prometheus.yaml'}", f"--storage.tsdb.path={self.folder / 'data'}",
            f"--web.listen-address={self.address}", "--storage.tsdb.retention.time=1d", "--log.level=warn",
        )  # fmt: skip


def scrape_config(targets_file: Path) -> str:
    """Prometheus' configuration: one job, whose targets are in a file; others may be put beside it."""
    files = [f"{targets_file.parent}/targets*.json"]
    config: dict[str, Any] = {
        "global": {"scrape_interval": SCRAPE_INTERVAL, "evaluation_interval": SCRAPE_INTERVAL},
        "rule_files": ["rules.yaml"],
        "scrape_configs": [
            {
                "job_name": "stratos",
                "file_sd_configs": [{"files": files, "refresh_interval": "5s"}],
            }
        ],
    }
    return str(yaml.safe_dump(config, sort_keys=False))


def target(name: str, service: str, metrics_address: str) -> dict[str, Any]:
    """One process in the file of targets."""
    labels = {"component": service.replace("_", "-"), "instance": name, "release": RELEASE}
    return {"targets": [metrics_address], "labels": labels}


async def is_ready(address: str, timeout_s: float = 1.0) -> bool:
    """It answers queries."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(host, int(port))
            try:
                writer.write(f"GET /-/ready HTTP/1.0\r\nHost: {address}\r\n\r\n".encode())
                await writer.drain()
                line = await reader.readline()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False
    return b" 200 " in line
