"""One contract: a local directory, S3 over real HTTP, and the server of an evaluation's object store."""

from __future__ import annotations

import asyncio
import errno
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import boto3
import pytest

from stratos.common.errors import BadRequest, DependencyDown, NotFound, RequestTooLarge, StratosError
from stratos.store import s3_store
from stratos.store.local_store import LocalStore
from stratos.store.object_store import MAX_FOLDER_FILES, ObjectStore
from stratos.store.served.server import KEY_ID, ObjectServer
from stratos.store.settings import ObjectStoreConfig
from stratos.store.urls import open_store
from tests.support.promises import Promised
from tests.support.servers.s3_server import BUCKET, s3_server


@pytest.fixture(scope="module")
def s3_endpoint() -> Iterator[str]:
    with s3_server() as url:
        yield url


@pytest.fixture(params=["local", "s3", "served"])
async def store(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[ObjectStore]:
    if request.param == "served":
        with served_folder(tmp_path / "store", monkeypatch) as endpoint:
            opened = open_store(ObjectStoreConfig(url="s3://stratos", s3_endpoint_url=endpoint))
            yield opened
            await opened.close()
        return
    if request.param == "local":
        (tmp_path / "store").mkdir()
        opened = open_store(ObjectStoreConfig(url=f"file://{tmp_path}/store"))
    else:
        endpoint = request.getfixturevalue("s3_endpoint")
        opened = open_store(ObjectStoreConfig(url=f"s3://{BUCKET}/{tmp_path.name}", s3_endpoint_url=endpoint))
    yield opened
    await opened.close()


@contextmanager
def served_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Its URL; the key is in the environment."""
    folder.mkdir()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "0123456789abcdef")
    server = ObjectServer(("127.0.0.1", 0), LocalStore(folder), "stratos", "0123456789abcdef", folder.parent)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.mkdir()
    (path / "config.json").write_text('{"r": 8}')
    (path / "weights.safetensors").write_bytes(bytes(range(256)) * 9000)
    (path / ".hidden").write_text("not an object")
    return path


async def put_folder(store: ObjectStore, folder: str, path: Path) -> None:
    for file in _visible(path):
        await store.put(f"{folder}/{file.name}", file)


async def test_a_file_that_is_too_large_for_one_request_goes_up_in_parts(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Amazon refuses more than 5 GiB in one; parts are of 5 MiB at least. A server without parts takes it whole."""
    monkeypatch.setattr(s3_store, "MAX_PUT_BYTES", 6 << 20)
    monkeypatch.setattr(s3_store, "PART_BYTES", 5 << 20)
    large, back = tmp_path / "large", tmp_path / "back"
    large.write_bytes(bytes(range(251)) * 50_000)
    await store.put("weights/large", large)
    await store.put("weights/small", b"of one")
    assert await store.fetch("weights/large", back, 1 << 30) == large.stat().st_size
    assert back.read_bytes() == large.read_bytes()


async def test_no_request_has_more_than_amazon_takes(
    s3_endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_store, "MAX_PUT_BYTES", 6 << 20)
    monkeypatch.setattr(s3_store, "PART_BYTES", 5 << 20)
    store = open_store(ObjectStoreConfig(url=f"s3://{BUCKET}/{tmp_path.name}", s3_endpoint_url=s3_endpoint))
    client = boto3.session.Session().client("s3", endpoint_url=s3_endpoint, region_name="us-east-1")
    for size, num_parts in ((6 << 20, ""), (12 << 20, "3")):
        (tmp_path / "file").write_bytes(bytes(size))
        await store.put("file", tmp_path / "file")
        tag = client.head_object(Bucket=BUCKET, Key=f"{tmp_path.name}/file")["ETag"].strip('"')
        assert tag.partition("-")[2] == num_parts, "of an object in parts it ends with their number"
    client.close()
    await store.close()


async def test_a_folder_comes_back_as_it_was_put(store: ObjectStore, folder: Path, tmp_path: Path) -> None:
    await put_folder(store, "adapters/one", folder)
    await put_folder(store, "adapters/one-more", folder)
    listed = await store.list_folder("adapters/one")
    assert [(i.key, i.num_bytes) for i in listed] == [
        ("adapters/one/config.json", 8),
        ("adapters/one/weights.safetensors", 2_304_000),
    ]
    await store.download_folder("adapters/one/", tmp_path / "cache" / "got")
    got = {p.name: p.read_bytes() for p in (tmp_path / "cache" / "got").iterdir()}
    assert got == {p.name: p.read_bytes() for p in _visible(folder)}
    assert [p.name for p in (tmp_path / "cache").iterdir()] == ["got"]


async def test_only_the_names_asked_for(store: ObjectStore, folder: Path, tmp_path: Path) -> None:
    await put_folder(store, "a", folder)
    await store.download_folder("a", tmp_path / "got", names=("config.json", "absent.json"))
    assert [p.name for p in (tmp_path / "got").iterdir()] == ["config.json"]
    with pytest.raises(NotFound, match=r"none of absent\.json"):
        await store.download_folder("a", tmp_path / "none", names=("absent.json",))


async def test_a_part_of_an_object_is_read_alone(store: ObjectStore, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(range(200)))
    await store.put("a/b", tmp_path / "file")
    assert await store.read("a/b", 10, 5) == bytes(range(10, 15))
    assert await store.read("a/b", 190, 50) == bytes(range(190, 200))
    assert await store.read("a/b", 300, 5) == b""
    with pytest.raises(NotFound):
        await store.read("a/c", 0, 5)


async def test_one_object_is_put_by_several_at_a_time(store: ObjectStore, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("content")
    await asyncio.gather(*(store.put("a/b", tmp_path / "file") for _ in range(8)))
    assert [(info.key, info.num_bytes) for info in await store.list_folder("a")] == [("a/b", 7)]


async def test_a_deleted_object_is_gone_and_its_neighbours_stay(store: ObjectStore, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    for key in ("a/b", "a/bc"):
        await store.put(key, tmp_path / "file")
    await store.delete("a/b")
    await store.delete("a/b")
    with pytest.raises(NotFound):
        await store.read("a/b", 0, 3)
    assert await store.read("a/bc", 0, 3) == b"abc"


async def test_put_replaces(store: ObjectStore, tmp_path: Path) -> None:
    for content in ("first", "second"):
        (tmp_path / "file").write_text(content)
        await store.put("a/b", tmp_path / "file")
    assert await store.fetch("a/b", tmp_path / "got", 100) == 6
    assert (tmp_path / "got").read_text() == "second"


async def test_what_is_missing_is_not_found(store: ObjectStore, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no folder 'adapters/none'"):
        await store.list_folder("adapters/none")
    with pytest.raises(NotFound):
        await store.download_folder("adapters/none", tmp_path / "cache" / "got")
    with pytest.raises(NotFound, match="no object 'adapters/none'"):
        await store.fetch("adapters/none", tmp_path / "got", 100)
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    "key",
    [
        "", "/", "/etc/passwd", "../secret", "a/../../secret", "a//b", "a/./b", "a\\..\\b", "~/x", "a/.ssh",
        "http://evil/x", "file:///etc/passwd", "s3://other/x", "a\0b", "a\nb", "x" * 600, "a/%2e%2e/b", "a\n",
    ],
)  # fmt: skip
async def test_a_key_that_is_no_plain_path_is_refused(store: ObjectStore, key: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    calls = (
        lambda: store.list_folder(key),
        lambda: store.fetch(key, tmp_path / "got", 10),
        lambda: store.put(key, tmp_path / "file"),
        lambda: store.download_folder(key, tmp_path / "got"),
    )
    for call in calls:
        with pytest.raises(BadRequest, match="relative to the object store") as caught:
            await call()
        assert caught.value.param == "uri"


async def test_sizes_are_bounded_and_leave_nothing_behind(store: ObjectStore, folder: Path, tmp_path: Path) -> None:
    await put_folder(store, "a", folder)
    with pytest.raises(RequestTooLarge, match="larger than 1000000 bytes"):
        await store.download_folder("a", tmp_path / "cache" / "got", max_bytes=1_000_000)
    with pytest.raises(RequestTooLarge, match="larger than 1000000 bytes"):
        await store.fetch("a/weights.safetensors", tmp_path / "one", 1_000_000)
    assert not (tmp_path / "cache" / "got").exists()


async def test_a_folder_of_too_many_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "many").mkdir()
    for i in range(MAX_FOLDER_FILES + 1):
        (tmp_path / "many" / str(i)).touch()
    with pytest.raises(RequestTooLarge):
        await open_store(ObjectStoreConfig(url=f"file://{tmp_path}")).list_folder("many")


async def test_a_download_that_fails_half_way_shows_nothing(
    store: ObjectStore, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put_folder(store, "a", folder)
    real_fetch = store.fetch

    async def fail_at_weights(key: str, path: Path, max_bytes: int) -> int:
        if key.endswith("weights.safetensors"):
            raise DependencyDown("gone")
        return await real_fetch(key, path, max_bytes)

    monkeypatch.setattr(store, "fetch", fail_at_weights)
    with pytest.raises(DependencyDown):
        await store.download_folder("a", tmp_path / "cache" / "got")
    assert list((tmp_path / "cache").iterdir()) == []


async def test_a_destination_made_meanwhile_stays(store: ObjectStore, folder: Path, tmp_path: Path) -> None:
    await put_folder(store, "a", folder)
    (tmp_path / "got").mkdir()
    (tmp_path / "got" / "mine").touch()
    await store.download_folder("a", tmp_path / "got")
    assert [p.name for p in (tmp_path / "got").iterdir()] == ["mine"]


async def test_a_link_out_of_the_local_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "store" / "a").mkdir(parents=True)
    (tmp_path / "secret").write_text("x")
    (tmp_path / "store" / "a" / "config.json").symlink_to(tmp_path / "secret")
    store = open_store(ObjectStoreConfig(url=f"file://{tmp_path}/store"))
    for call in (store.list_folder("a"), store.fetch("a/config.json", tmp_path / "got", 10)):
        with pytest.raises(BadRequest, match="leads out of the object store"):
            await call
    assert not (tmp_path / "got").exists()


async def test_a_full_disk_says_so(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 100)
    store = open_store(ObjectStoreConfig(url=f"file://{tmp_path}"))
    with pytest.raises(DependencyDown, match="no disk space is left"):
        await store.fetch("a", Path("/dev/full"), 1000)


@pytest.mark.parametrize(
    ("url", "endpoint", "message"),
    [
        ("file:///nowhere/at/all", "", "/nowhere/at/all does not exist"),
        ("s3://no-such-bucket/x", "moto", "bucket 'no-such-bucket' does not exist"),
        ("s3://weights/x", "refused", "does not serve"),
    ],
)
async def test_a_store_that_is_down_says_so_within_a_second(
    url: str, endpoint: str, message: str, s3_endpoint: str, tmp_path: Path, promised: Promised
) -> None:
    with socket.socket() as closed:  # bound and not listening: connections are refused
        closed.bind(("127.0.0.1", 0))
        refused = f"http://127.0.0.1:{closed.getsockname()[1]}"
        endpoint_url = {"moto": s3_endpoint, "refused": refused}.get(endpoint, "")
        store = open_store(ObjectStoreConfig(url=url, s3_endpoint_url=endpoint_url), num_attempts=1)
        with pytest.raises(DependencyDown):  # opens the client, which takes time of its own
            await store.list_folder("a")
        with promised("an object store that is down is named", 1.0), pytest.raises(DependencyDown, match=message):
            await store.list_folder("a")
        await store.close()


@pytest.mark.parametrize("url", ["", "weights", "http://host/x", "s3://", "file://host/x", "gs://bucket"])
def test_another_scheme_is_refused(url: str) -> None:
    with pytest.raises(StratosError, match=r"must be file:///folder or s3://bucket/prefix"):
        open_store(ObjectStoreConfig(url=url))


def _visible(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if not path.name.startswith(".")]


async def test_opening_s3_makes_the_client_and_needs_no_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    real = boto3.session.Session.client
    monkeypatch.setattr(
        boto3.session.Session, "client", lambda self, name, **config: made.append(name) or real(self, name, **config)
    )
    store = open_store(ObjectStoreConfig(url=f"s3://{BUCKET}/x", s3_endpoint_url="http://127.0.0.1:9"))
    await store.open()
    assert made == ["s3"]
    with pytest.raises(DependencyDown):
        await store.list_folder("a")
    assert made == ["s3"], "the first call makes no other one"
    await store.close()


async def test_an_object_that_is_removed_while_its_folder_is_listed_is_not_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "kept").write_text("x")
    monkeypatch.setattr("stratos.store.local_store.os.walk", lambda path: [(str(path), [], ["kept", "removed"])])
    store = open_store(ObjectStoreConfig(url=f"file://{tmp_path}"))
    assert [info.key for info in await store.list_folder("folder")] == ["folder/kept"]


async def test_a_whole_listing_has_every_object_and_when_it_was_written(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await store.list_all("chunks") == []
    monkeypatch.setattr("stratos.store.served.server.PAGE_KEYS", 4)
    keys = [f"chunks/{number:02d}/{number}" for number in range(9)]
    began = time.time()
    await asyncio.gather(*(store.put(key, b"123") for key in (*keys, "other/1")))
    found = await store.list_all("chunks")
    assert [info.key for info in found] == keys
    assert {info.num_bytes for info in found} == {3}
    assert all(abs(info.written_unix_s - began) < 60 for info in found)


async def test_a_whole_listing_goes_beyond_the_bound_of_a_folder(store: ObjectStore) -> None:
    many = MAX_FOLDER_FILES + 1
    await asyncio.gather(*(store.put(f"many/{number}", b"") for number in range(many)))
    assert len(await store.list_all("many")) == many
    with pytest.raises(RequestTooLarge):
        await store.list_folder("many")


async def test_hidden_objects_take_no_place_of_others(s3_endpoint: str, tmp_path: Path) -> None:
    """The defect: those of a cloned repository filled the one page that was asked for, and files were left out."""
    store = open_store(ObjectStoreConfig(url=f"s3://{BUCKET}/{tmp_path.name}", s3_endpoint_url=s3_endpoint))
    client = boto3.client("s3", endpoint_url=s3_endpoint, region_name="us-east-1")
    hidden = [f"{tmp_path.name}/model/.git/{number}" for number in range(MAX_FOLDER_FILES)]
    for key in (*hidden, f"{tmp_path.name}/model/a", f"{tmp_path.name}/model/b"):
        client.put_object(Bucket=BUCKET, Key=key, Body=b"12")
    client.close()
    assert [(info.key, info.num_bytes) for info in await store.list_folder("model")] == [("model/a", 2), ("model/b", 2)]
    await store.close()


async def test_a_folder_without_room_on_this_machine_is_a_dependency_down(
    store: ObjectStore, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put_folder(store, "model", folder)

    def refuse(**_: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("stratos.store.object_store.tempfile.mkdtemp", refuse)
    with pytest.raises(DependencyDown, match="No space left"):
        await store.download_folder("model", tmp_path / "got")
