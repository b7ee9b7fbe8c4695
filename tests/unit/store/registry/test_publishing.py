"""Published models: whole or not there, sent once, and refused where anything was altered."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stratos.common.errors import BadRequest, DependencyDown, InvalidCheckpoint, NotFound
from stratos.core.files.model_files import read_model_files
from stratos.core.files.model_texts import text_digest
from stratos.store.local_store import LocalStore
from stratos.store.models.texts import TextFolders
from stratos.store.object_store import MAX_FOLDER_FILES
from stratos.store.registry.catalogue import find_published, list_published, manifest_key, parse_reference
from stratos.store.registry.manifest import chunk_key, decode_manifest
from stratos.store.registry.publishing import PublishAsk, publish, publish_again
from tests.support.reference.published_models import DRAFT, FACTS, published, save_large_model
from tests.support.reference.second_model import save_second_model


class CountingStore(LocalStore):
    """Counts what is put into it, and fails from one put on."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.puts: Counter[str] = Counter()
        self.fails_after = 1_000

    async def put(self, key: str, content: Path | bytes) -> None:
        if self.puts.total() >= self.fails_after:
            raise DependencyDown("the store is away")
        if (kind := key.split("/")[1]) != "marks":
            self.puts[kind] += 1
        await super().put(key, content)


@pytest.fixture
def store(tmp_path: Path) -> CountingStore:
    (tmp_path / "objects").mkdir()
    return CountingStore(tmp_path / "objects")


async def test_a_published_model_is_found_by_name_and_digits_with_what_gateways_read_of_it(
    store: CountingStore, tmp_path: Path
) -> None:
    made = await published(store)
    digest = read_model_files(DRAFT).digest
    assert (made.manifest.digest, made.manifest.text_digest) == (digest, text_digest(DRAFT))
    for text in ("registry:draft", f"registry:draft@{digest[:8]}", made.reference):
        assert await find_published(store, parse_reference(text)) == made
    assert {file.name for file in made.manifest.files} == {path.name for path in DRAFT.iterdir()}
    assert text_digest(await TextFolders(store, tmp_path / "words").fetch(made.manifest.text_digest))
    newer = await published(store, save_second_model(tmp_path / "second"), created=2_000)
    assert [one.manifest.digest for one in await list_published(store, "draft")] == [newer.manifest.digest, digest]
    assert await find_published(store, parse_reference("registry:draft")) == newer


async def test_publishing_again_sends_nothing_and_two_names_share_chunks(store: CountingStore) -> None:
    made = await published(store)
    store.puts.clear()
    assert await published(store, created=9_000) == made
    assert store.puts.total() == 0
    other = await published(store, name="org/twin", created=9_000)
    assert (store.puts["chunks"], other.manifest.files) == (0, made.manifest.files)
    assert await find_published(store, parse_reference("registry:org/twin")) == other
    assert len(await list_published(store, "draft")) == 1


async def test_a_revision_gets_another_name_by_reference_unless_it_is_damaged(
    store: CountingStore, tmp_path: Path
) -> None:
    made = await published(store)
    store.puts.clear()
    other = await publish_again(store, "org/twin", parse_reference("registry:draft"))
    assert (other.manifest, store.puts) == (made.manifest, Counter(models=1))
    assert await find_published(store, parse_reference("registry:org/twin")) == other
    (tmp_path / "objects" / chunk_key(made.manifest.files[0].chunks[0])).unlink()
    with pytest.raises(InvalidCheckpoint, match="the object store lacks a chunk"):
        await publish_again(store, "third", parse_reference("registry:draft"))
    with pytest.raises(NotFound):
        await find_published(store, parse_reference("registry:third"))


async def test_what_was_not_published_to_its_end_does_not_exist_and_goes_on(
    store: CountingStore, tmp_path: Path
) -> None:
    large = save_large_model(tmp_path / "large")
    for fails_after in (2, 9, 11):  # among the chunks, among the words, at the manifest
        store.fails_after = fails_after
        with pytest.raises(DependencyDown):
            await published(store, large)
        with pytest.raises(NotFound, match="is not published, or was not to its end"):
            await find_published(store, parse_reference("registry:draft"))
    store.fails_after = 1_000
    made = await published(store, large)
    chunks = {chunk for file in made.manifest.files for chunk in file.chunks}
    assert store.puts["chunks"] == len(chunks) == 7
    assert await find_published(store, parse_reference("registry:draft")) == made


async def test_files_that_change_while_they_are_published_are_refused(store: CountingStore, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(DRAFT, folder)

    class Changing(CountingStore):
        async def put(self, key: str, content: Path | bytes) -> None:
            (folder / "model.safetensors").touch()
            await super().put(key, content)

    with pytest.raises(InvalidCheckpoint, match="changed since they were checked"):
        await published(Changing(tmp_path / "objects"), folder)


async def test_another_tokenizer_for_a_published_digest_is_refused(store: CountingStore, tmp_path: Path) -> None:
    await published(store)
    other = tmp_path / "other"
    shutil.copytree(DRAFT, other)
    (other / "chat_template.jinja").write_text("{{ messages }}", encoding="utf-8")
    with pytest.raises(BadRequest, match="published with another tokenizer, template or configuration"):
        await published(store, other)
    assert (await published(store, other, "other")).manifest.text_digest == text_digest(other)


async def test_words_that_are_not_those_that_were_checked_are_refused(store: CountingStore) -> None:
    ask = PublishAsk(name="draft", folder=DRAFT, facts=FACTS, created_unix_s=1, text_digest="0" * 64)
    with pytest.raises(InvalidCheckpoint, match="changed since they were checked"):
        await publish(store, ask)


async def test_of_two_publishers_of_other_words_for_one_digest_not_both_succeed(tmp_path: Path) -> None:
    other, both = tmp_path / "other", asyncio.Barrier(2)
    shutil.copytree(DRAFT, other)
    (other / "chat_template.jinja").write_text("{{ messages }}", encoding="utf-8")

    class Meeting(LocalStore):
        async def put(self, key: str, content: Path | bytes) -> None:
            if key.startswith("registry/models/"):
                await both.wait()
            await super().put(key, content)

    (tmp_path / "objects").mkdir()
    store = Meeting(tmp_path / "objects")
    done = await asyncio.gather(published(store), published(store, other), return_exceptions=True)
    made = [one for one in done if not isinstance(one, BaseException)]
    assert len(made) <= 1, "they may refuse each other"
    assert all(isinstance(one, BadRequest) for one in done if one not in made)
    assert await list_published(store, "draft") == made


def fill(objects: Path, name: str, count: int) -> None:
    """Manifests of a name, which cannot be read."""
    for number in range(count):
        path = objects / manifest_key(name, f"{number:064x}", f"{number:064x}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


async def test_a_name_that_is_full_takes_no_more_and_serves_what_it_has(store: CountingStore, tmp_path: Path) -> None:
    made = await published(store)
    fill(tmp_path / "objects", "draft", MAX_FOLDER_FILES - 1)
    with pytest.raises(BadRequest, match="draft has 256 revisions, the most of a name"):
        await published(store, save_second_model(tmp_path / "second"))
    fill(tmp_path / "objects", "draft", MAX_FOLDER_FILES)  # one more, by two publishers at a time
    assert await find_published(store, parse_reference(made.reference)) == made


async def test_names_below_a_name_are_none_of_its_revisions(store: CountingStore, tmp_path: Path) -> None:
    made = await published(store)
    fill(tmp_path / "objects", "draft/below", MAX_FOLDER_FILES + 1)
    assert await find_published(store, parse_reference("registry:draft")) == made


async def test_words_that_the_store_lost_are_sent_again(store: CountingStore, tmp_path: Path) -> None:
    made = await published(store)
    shutil.rmtree(tmp_path / "objects" / "catalogue")
    assert await published(store) == made
    path = await TextFolders(store, tmp_path / "words").fetch(made.manifest.text_digest)
    stored = tmp_path / "objects" / "catalogue" / "models" / path.name / "tokenizer.json"
    right = stored.read_bytes()
    stored.write_bytes(right[:-1] + b"!")
    await published(store, repairs=True)
    assert stored.read_bytes() == right


async def test_an_altered_manifest_is_made_again_by_a_repair(store: CountingStore, tmp_path: Path) -> None:
    made = await published(store)
    path = tmp_path / "objects" / manifest_key("draft", made.manifest.digest, made.manifest_digest)
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(InvalidCheckpoint, match=r"was altered.*publish the model again with --repair"):
        await published(store, created=2_000)
    again = await published(store, created=2_000, repairs=True)
    assert await list_published(store, "draft") == [again]
    assert again.manifest.files == made.manifest.files


async def test_an_altered_manifest_is_refused(store: CountingStore, tmp_path: Path) -> None:
    made = await published(store)
    path = tmp_path / "objects" / manifest_key("draft", made.manifest.digest, made.manifest_digest)
    content = json.loads(path.read_bytes())
    content["facts"]["licence"] = "mine"
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(InvalidCheckpoint, match="was altered: its bytes have another digest than its name"):
        await find_published(store, parse_reference("registry:draft"))


@pytest.mark.parametrize(
    ("alter", "message"),
    [
        (lambda m: m["files"][-1]["chunks"].append("0" * 64), "do not add up"),
        (lambda m: m["files"][-1]["chunks"].__setitem__(0, "0" * 64), "do not add up to the digest"),
        (lambda m: m["files"][-1].update(num_bytes=5), "do not add up to the digest"),
        (lambda m: m["files"][-1].update(name="model.bin"), "no weights in safetensors"),
        (lambda m: m["files"][0].update(name="../x.json"), "is no file of a published model"),
        (lambda m: m.update(files=[]), "no weights in safetensors"),
        (lambda m: m["files"].append({**m["files"][0], "name": "config.json/x.json"}), "as a file and as a folder"),
        (lambda m: m.update(format=2), "cannot be read: format"),
        (lambda m: m.update(more=1), "cannot be read: more"),
    ],
)
async def test_a_manifest_that_contradicts_itself_is_refused(
    store: CountingStore, alter: Callable[[dict[str, Any]], object], message: str
) -> None:
    made = await published(store)
    content = json.loads(made.manifest.encoded())
    alter(content)
    encoded = json.dumps(content).encode()
    with pytest.raises(InvalidCheckpoint, match=message):
        decode_manifest(encoded, hashlib.sha256(encoded).hexdigest())


async def test_a_chunk_that_was_altered_is_sent_again_by_a_repair(store: CountingStore, tmp_path: Path) -> None:
    made = await published(store)
    weights = next(file for file in made.manifest.files if file.name == "model.safetensors")
    path = tmp_path / "objects" / chunk_key(weights.chunks[0])
    right = path.read_bytes()
    path.write_bytes(right[:-1] + bytes([right[-1] ^ 1]))
    await published(store)
    assert path.read_bytes() != right
    await published(store, repairs=True)
    assert path.read_bytes() == right
    path.write_bytes(right[:-1])  # another size is seen without a repair
    await published(store)
    assert path.read_bytes() == right


@pytest.mark.parametrize(
    "text", ["draft", "registry:", "registry:a@", "registry:a@12", "registry:../x", "registry:a@xyz"]
)
def test_what_is_no_reference_is_refused(text: str) -> None:
    with pytest.raises(BadRequest):
        parse_reference(text)
