"""One running platform for all files of this folder: two gateways, two decode workers and a collector of traces."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.servers.otlp_receiver import OtlpReceiver, otlp_receiver
from tests.support.worlds.platform_process import MTLS, PlatformProcess, running_platform

SIZE = ("--engine", "fake", "--gateways", "2", "--decode", "2", "--max-decode", "2", "--log-level", "debug")
STEP_S = 0.01
ENV = {
    "STRATOS_DECODE_WORKER_FAKE__STEP_S": str(STEP_S),
    "STRATOS_PREFILL_WORKER_FAKE__STEP_S": str(STEP_S),
    "STRATOS_DECODE_WORKER_USAGE__CLAIM_AFTER_S": "0.5",
    "STRATOS_DECODE_WORKER_USAGE__OFFER_INTERVAL_S": "1",
    "STRATOS_GATEWAY_LEDGER__CLAIM_INTERVAL_S": "0.3",
    "STRATOS_GATEWAY_LEDGER__SETTLE_S": "2",  # a busy machine's disk, too
}


@pytest.fixture(scope="package")
def collector() -> Iterator[OtlpReceiver]:
    with otlp_receiver() as receiver:
        yield receiver


@pytest.fixture(scope="package")
def platform(tmp_path_factory: pytest.TempPathFactory, collector: OtlpReceiver) -> Iterator[PlatformProcess]:
    folder = tmp_path_factory.mktemp("platform")
    with running_platform(folder, *SIZE, *MTLS, "--otlp-endpoint", collector.endpoint, env=ENV) as running:
        yield running
