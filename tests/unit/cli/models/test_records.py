"""Models from the command line: their words are stored first; where the digest is known, no weights are needed."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from stratos.cli.models.records import ModelAsk, add_model, row_text, wait_for_workers
from stratos.common.errors import InvalidCheckpoint
from stratos.core.files.model_files import read_model_files
from stratos.store.local_store import LocalStore
from stratos.store.models.texts import FOLDER
from stratos.store.settings import ObjectStoreConfig
from tests.support.paths import MODELS

DRAFT = MODELS / "draft"
ROW = {
    "name": "small",
    "digest": "d" * 64,
    "state": "serving",
    "from": "record",
    "current": True,
    "live": True,
    "reason": "",
}


class Client:
    """Admin API that has the rows of a list, perhaps from its second call on."""

    def __init__(self, rows: list[dict[str, Any]] | None = None, *, is_late: bool = False) -> None:
        self.rows = rows or []
        self.is_late = is_late

    def call(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        shown, self.is_late = [] if self.is_late else self.rows, False
        return dict(body) if method == "POST" else {"data": shown}


def asked(tmp_path: Path, folder: Path, digest: str = "") -> ModelAsk:
    store = ObjectStoreConfig(url=f"file://{tmp_path}/objects")
    return ModelAsk(
        name="small", folder=folder, digest=digest, digests_file=tmp_path / "digests.json", store=store,
        terms={"size": "8b"},
    )  # fmt: skip


def test_a_model_is_recorded_with_the_digest_of_its_weights_and_that_of_its_words(tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    shutil.copytree(DRAFT, texts, ignore=shutil.ignore_patterns("*.safetensors"))
    digest = read_model_files(DRAFT).digest
    whole = add_model(Client(), asked(tmp_path, DRAFT))
    bare = add_model(Client(), asked(tmp_path, texts, digest))
    assert (whole["digest"], whole["size"], whole["source"]) == (digest, "8b", str(DRAFT))
    assert (bare["digest"], bare["text_digest"]) == (digest, whole["text_digest"])
    stored = asyncio.run(LocalStore(tmp_path / "objects").list_folder(f"{FOLDER}/{whole['text_digest']}"))
    assert not [info.key for info in stored if info.key.endswith(".safetensors")]
    with pytest.raises(InvalidCheckpoint):
        add_model(Client(), asked(tmp_path, texts))


def test_a_model_is_waited_for_until_it_has_workers_that_get_requests() -> None:
    rows = [{**ROW, "workers": {"prefill": 0, "decode": 1}}]
    assert wait_for_workers(Client(rows, is_late=True), ROW["digest"], 60.0)
    assert wait_for_workers(Client(rows), ROW["digest"], 0.0)
    assert not wait_for_workers(Client([{**ROW, "workers": None, "live": None}]), ROW["digest"], 0.0)
    alone = {**ROW, "workers": {"prefill": 1, "decode": 0}, "live": False}
    assert not wait_for_workers(Client([alone]), ROW["digest"], 0.0)  # a prefill worker serves no generation
    assert not wait_for_workers(Client([{**rows[0], "current": False}]), ROW["digest"], 0.0)
    assert row_text(rows[0]).split() == f"* small {'d' * 12} serving record 0 prefill + 1 decode".split()
