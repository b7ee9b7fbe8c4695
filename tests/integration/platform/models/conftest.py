"""One running platform for all files of this folder: two gateways, two routers, two models with a worker each.

Tokens of the fake engine tell of which model they are, and one model's workers die as they load it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from stratos.core.files.model_files import read_model_files
from tests.support.paths import BASE_MODEL, MODELS
from tests.support.worlds.platform_process import MTLS, PlatformProcess, running_platform

STEP_S = 0.04
CONTEXT = 65536
"""Of the smaller model: its streams last longer than a test may."""
SIZE = ("--prefill", "0", "--decode", "1", "--max-decode", "1", "--gateways", "2", "--routers", "2")


def save_revision(folder: Path, context: int) -> Path:
    """The shipped draft model with a context of its own, which makes another revision of it."""
    shutil.copytree(MODELS / "draft", folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": context}), encoding="utf-8")
    return folder


@pytest.fixture(scope="package")
def crashing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A revision of "small" whose workers die as they load it."""
    return save_revision(tmp_path_factory.mktemp("model") / "crashing", 4000)


@pytest.fixture(scope="package")
def platform(tmp_path_factory: pytest.TempPathFactory, crashing: Path) -> Iterator[PlatformProcess]:
    small = save_revision(tmp_path_factory.mktemp("model") / "small", CONTEXT)
    env = {
        "STRATOS_GATEWAY_ROLLOUTS__POLL_S": "0.2",
        "STRATOS_GATEWAY_ROLLOUTS__PUBLISH_S": "0.2",
        "STRATOS_GATEWAY_STREAMS__CALL_S": "5",  # on a busy machine a record is late, and its stream begins without it
        "STRATOS_DECODE_WORKER_FAKE__STEP_S": str(STEP_S),
        "STRATOS_DECODE_WORKER_FAKE__NUM_BLOCKS": "8192",
        "STRATOS_DECODE_WORKER_FAKE__TELLS_MODELS": "true",
        "STRATOS_DECODE_WORKER_FAKE__CRASH_MODEL": read_model_files(crashing).digest,
    }
    models = ("--model", str(BASE_MODEL), "--model", f"small={small}")
    with running_platform(
        tmp_path_factory.mktemp("platform"), "--engine", "fake", *models, *SIZE, *MTLS, env=env
    ) as running:
        yield running
