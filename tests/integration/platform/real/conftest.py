"""One running platform for all files of this folder: the shipped model and adapters, and a collector of traces."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.servers.otlp_receiver import OtlpReceiver, otlp_receiver
from tests.support.worlds.platform_process import PlatformProcess, running_platform

DECODE = "STRATOS_DECODE_WORKER_SCHEDULER__"
ALL_DRAFTS_RUN = {f"{DECODE}SPECULATION__IS_ADAPTIVE": "false", f"{DECODE}STEP_TIME_BUDGET_MS": "0"}
"""Also where steps take as long as on a busy machine, on which none pays."""


@pytest.fixture(scope="package")
def collector() -> Iterator[OtlpReceiver]:
    with otlp_receiver() as receiver:
        yield receiver


@pytest.fixture(scope="package")
def real_platform(tmp_path_factory: pytest.TempPathFactory, collector: OtlpReceiver) -> Iterator[PlatformProcess]:
    """One decode worker and no more: where a prompt is cached does not depend on what the autoscaler thinks."""
    flags = ("--max-decode", "1", "--otlp-endpoint", collector.endpoint)
    with running_platform(tmp_path_factory.mktemp("platform"), *flags, env=ALL_DRAFTS_RUN) as running:
        yield running
