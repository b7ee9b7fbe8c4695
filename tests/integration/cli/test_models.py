"""Base models in an object store: published, fetched once into a cache that several share, and checked."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stratos.cli.main import app
from stratos.cli.models.model_store import fetch_model, upload_model
from stratos.common.errors import InvalidCheckpoint, NotFound
from stratos.core.files.model_files import read_model_files
from stratos.store.local_store import LocalStore
from stratos.store.object_store import ObjectStore
from tests.support.paths import ROOT
from tests.support.reference.gguf_files import tiny_llama, write
from tests.support.servers.s3_server import BUCKET, s3_server

MODEL = ROOT / "models" / "draft"
PREFIX = "models/draft"


class CountingStore(LocalStore):
    """Counts what is read from it."""

    num_fetched = 0

    async def fetch(self, key: str, path: Path, max_bytes: int) -> int:
        self.num_fetched += 1
        return await super().fetch(key, path, max_bytes)


@pytest.fixture
async def store(tmp_path: Path) -> CountingStore:
    (tmp_path / "objects").mkdir()
    store = CountingStore(tmp_path / "objects")
    assert await upload_model(store, MODEL, PREFIX) == read_model_files(MODEL).digest
    return store


async def test_a_model_comes_back_whole(store: CountingStore, tmp_path: Path) -> None:
    target = tmp_path / "cache" / "draft"
    assert await fetch_model(store, PREFIX, target, read_model_files(MODEL).digest)
    assert {p.name: p.read_bytes() for p in target.iterdir()} == {p.name: p.read_bytes() for p in MODEL.iterdir()}


async def test_several_that_share_a_cache_fetch_once(store: CountingStore, tmp_path: Path) -> None:
    target = tmp_path / "cache" / "draft"
    done = await asyncio.gather(*(fetch_model(store, PREFIX, target) for _ in range(4)))
    assert sorted(done) == [False, False, False, True]
    assert store.num_fetched == len(list(MODEL.iterdir()))
    assert [p.name for p in target.parent.iterdir() if "fetch" in p.name] == []


async def test_another_model_than_asked_for_never_appears(store: CountingStore, tmp_path: Path) -> None:
    target = tmp_path / "cache" / "draft"
    with pytest.raises(InvalidCheckpoint, match="has the digest"):
        await fetch_model(store, PREFIX, target, "0" * 64)
    assert not target.exists()
    with pytest.raises(NotFound):
        await fetch_model(store, "models/none", target)
    assert await fetch_model(store, PREFIX, target)


async def test_what_a_killed_fetch_left_is_removed(store: ObjectStore, tmp_path: Path) -> None:
    left = tmp_path / "cache" / ".draft.fetch-0badcafe"
    left.mkdir(parents=True)
    (left / "model.safetensors").write_bytes(b"half")
    await fetch_model(store, PREFIX, tmp_path / "cache" / "draft")
    assert not left.exists()


@pytest.fixture
def place() -> Iterator[tuple[str, str]]:
    with s3_server() as url:
        yield f"--object-store=s3://{BUCKET}/site", f"--s3-endpoint={url}"


def test_from_and_to_s3_by_the_command(place: tuple[str, str], tmp_path: Path) -> None:
    run = CliRunner().invoke
    published = run(app, ["models", "upload", str(MODEL), PREFIX, *place])
    assert published.exit_code == 0, published.output
    digest = published.output.strip()
    target = tmp_path / "draft"
    for said in ("is fetched", "was there already"):
        fetched = run(app, ["models", "fetch", PREFIX, *place, f"--into={target}", f"--digest={digest}"])
        assert (fetched.exit_code, said in fetched.output) == (0, True), fetched.output
    assert read_model_files(target).digest == digest


@pytest.mark.slow
def test_publish_fetch_and_pull_from_s3(place: tuple[str, str], tmp_path: Path) -> None:
    data, run = f"--data-dir={tmp_path / 'data'}", CliRunner().invoke
    made = run(app, ["models", "publish", "org/draft", f"--path={MODEL}", *place, data])
    assert made.exit_code == 0, made.output
    assert "29 tensors, computed token" in made.output
    reference, digest = made.stdout.splitlines()[-1], read_model_files(MODEL).digest
    assert reference == f"registry:org/draft@{digest}"
    listed = run(app, ["models", "published", "org/draft", *place])
    assert all(text in listed.output for text in (reference, "LlamaForCausalLM, BF16, 3 layers")), listed.output
    whole, words = (tmp_path / "whole", tmp_path / "words")
    for into, more in ((whole, []), (words, ["--words"])):
        fetched = run(app, ["models", "fetch", reference, *place, f"--into={into}", f"--digest={digest}", *more])
        assert fetched.exit_code == 0, fetched.output
    assert read_model_files(whole).digest == digest
    assert not list(words.glob("*.safetensors"))
    for came in ("2,423,954", "0"):
        pulled = run(app, ["models", "pull", reference[:30], *place, f"--cache={tmp_path / 'cache'}"])
        assert pulled.output.strip().endswith(f": {came} bytes came"), pulled.output
    without = run(app, ["models", "unpublish", reference, *place])
    assert without.exit_code == 0, without.output
    assert "no platform was asked" in without.output
    swept = run(app, ["models", "sweep", "--min-age-s=0", "--dry-run", *place])
    assert "chunks would be deleted" in swept.output, swept.output
    swept = run(app, ["models", "sweep", "--min-age-s=0", *place])
    assert "no audit log has an entry" in swept.output
    assert not swept.output.startswith("0 chunks"), swept.output
    assert run(app, ["models", "sweep", "--min-age-s=0", *place]).output.startswith("0 chunks deleted: 0 bytes")
    again = run(app, ["models", "unpublish", reference, *place])
    assert (again.exit_code, "is not published" in again.output) == (1, True)
    gone = run(app, ["models", "pull", "registry:none", *place, f"--cache={tmp_path / 'cache'}"])
    assert (gone.exit_code, "registry:none is not published" in gone.output) == (1, True)


def test_publishing_without_an_address_needs_a_key(tmp_path: Path) -> None:
    ask = ["models", "publish", "draft", f"--path={MODEL}", f"--data-dir={tmp_path}"]
    refused = CliRunner().invoke(app, ask, env={"STRATOS_ADMIN_KEY": ""})
    assert (refused.exit_code, "give --key" in refused.output) == (1, True)


def test_a_gguf_file_is_published_as_the_folder_that_it_stands_for(tmp_path: Path) -> None:
    path, run = write(tmp_path / "tiny.gguf", tiny_llama()), CliRunner().invoke
    made = run(app, ["models", "folder", str(path), f"--into={tmp_path / 'tiny'}"])
    assert made.exit_code == 0, made.output
    (tmp_path / "objects").mkdir()
    store = f"--object-store=file://{tmp_path / 'objects'}"
    published = run(app, ["models", "upload", str(path), "models/tiny", store])
    assert published.exit_code == 0, published.output
    fetched = run(app, ["models", "fetch", "models/tiny", store, f"--into={tmp_path / 'fetched'}"])
    assert fetched.exit_code == 0, fetched.output
    assert not (tmp_path / "fetched" / "model.gguf").is_symlink()
    digests = {read_model_files(tmp_path / name).digest for name in ("tiny", "fetched")}
    assert digests == {published.output.strip()}
    broken = run(app, ["models", "folder", str(MODEL / "config.json"), f"--into={tmp_path / 'x'}"])
    assert broken.exit_code == 1
    assert "does not begin with GGUF" in broken.output
