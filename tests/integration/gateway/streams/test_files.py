"""Files at two gateways: uploaded at one, read in ranges at the other, sealed, bounded, and of their tenant alone."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from stratos.common.errors import DependencyDown
from stratos.store.local_store import LocalStore
from stratos.store.redis import open_redis
from stratos.store.sealed.file_writer import PART_BYTES
from tests.support.waiting import eventually
from tests.support.worlds.admin_world import AdminWorld
from tests.support.worlds.stream_world import stream_worlds

PATH = "/v1/files"
PLANTED = "the Blue Heron flies at dawn"


@pytest.fixture
async def worlds(redis_url: str, tmp_path: Path) -> AsyncIterator[list[AdminWorld]]:
    async with stream_worlds(redis_url, tmp_path) as found:
        yield found


def lines(num: int, prompt: str = PLANTED) -> bytes:
    own = {"method": "POST", "url": "/v1/completions", "body": {"model": "base", "prompt": prompt}}
    return b"".join(orjson.dumps({"custom_id": f"c{number}", **own}) + b"\n" for number in range(num))


async def call(world: AdminWorld, method: str, path: str, *, by: str = "user", **more: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {world.keys[by]}", **more.pop("headers", {})}
    return await world.public.request(method, path, headers=headers, **more)


async def upload(world: AdminWorld, content: Any, by: str = "user", **fields: str) -> httpx.Response:
    form = {"purpose": "batch", **fields}
    return await call(world, "POST", PATH, by=by, data=form, files={"file": ("in.jsonl", content)})


async def test_a_file_is_read_in_ranges_at_any_gateway_and_lies_sealed(
    worlds: list[AdminWorld], tmp_path: Path
) -> None:
    one, two = worlds
    content = lines(PART_BYTES // 100)
    assert len(content) > PART_BYTES
    answer = await upload(one, content)
    assert answer.status_code == 200, answer.text
    file = answer.json()
    assert (file["bytes"], file["filename"], file["purpose"]) == (len(content), "in.jsonl", "batch")
    at = f"{PATH}/{file['id']}"
    assert (await call(two, "GET", at)).json() == file
    assert (await call(two, "GET", f"{at}/content")).content == content
    last = len(content) - 1
    for text, begin, end in (
        ("0-9", 0, 10), (f"{PART_BYTES - 5}-{PART_BYTES + 4}", PART_BYTES - 5, PART_BYTES + 5),
        ("-7", last - 6, last + 1), (f"{last}-", last, last + 1), (f"5-{last + 100}", 5, last + 1),
    ):  # fmt: skip
        part = await call(two, "GET", f"{at}/content", headers={"range": f"bytes={text}"})
        assert (part.status_code, part.content) == (206, content[begin:end]), text
        assert part.headers["content-range"] == f"bytes {begin}-{end - 1}/{len(content)}"
    behind = await call(two, "GET", f"{at}/content", headers={"range": f"bytes={last + 1}-"})
    assert (behind.status_code, behind.json()["error"]["code"]) == (416, "invalid_range")
    stored = [path.read_bytes() for path in (tmp_path / "blobs").rglob("file-*")]
    assert len(stored) == 1
    assert PLANTED.encode() not in stored[0]


async def test_files_are_listed_and_deleted_by_their_tenant_alone(worlds: list[AdminWorld], tmp_path: Path) -> None:
    one, two = worlds
    names = [(await upload(one, lines(1))).json()["id"] for _ in range(3)]
    other = (await upload(one, lines(1), by="stranger")).json()["id"]
    listed = (await call(two, "GET", PATH)).json()
    assert {file["id"] for file in listed["data"]} == set(names)
    order = [file["id"] for file in listed["data"]]
    page = (await call(two, "GET", f"{PATH}?limit=1&after={order[0]}&purpose=batch")).json()
    assert ([file["id"] for file in page["data"]], page["has_more"]) == ([order[1]], True)
    for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/content")):
        assert (await call(two, method, f"{PATH}/{other}{path}")).status_code == 404
    for name in names:
        assert (await call(two, "DELETE", f"{PATH}/{name}")).json()["deleted"]
        assert (await call(one, "GET", f"{PATH}/{name}")).status_code == 404
    assert (await call(one, "GET", f"{PATH}/{other}/content", by="stranger")).content == lines(1)


async def test_a_file_whose_time_is_over_is_gone_and_leaves_its_room(redis_url: str, tmp_path: Path) -> None:
    """At once for its tenant; its bytes are due a minute later."""
    bounds = {"kept_s": 2.0, "tenant_files": 1, "sweep_s": 0.02}
    async with stream_worlds(redis_url, tmp_path, num=1, files=bounds) as [world], open_redis(redis_url) as redis:
        file = (await upload(world, lines(1))).json()
        assert file["expires_at"] - file["created_at"] == 2
        assert (await upload(world, lines(1))).status_code == 429, "it is the one that has room"
        at = f"{PATH}/{file['id']}"

        async def is_gone() -> bool:
            return (await call(world, "GET", at)).status_code == 404

        await eventually(is_gone, "its time is over")
        assert (await call(world, "GET", f"{at}/content")).status_code == 404
        assert (await call(world, "GET", PATH)).json()["data"] == []
        [(place, due_ms)] = await redis.zrange("stratos:files:objects", 0, -1, withscores=True)
        assert 60 <= due_ms / 1000 - file["expires_at"] < 62
        assert list((tmp_path / "blobs").rglob("file-*")), "they are not due yet"
        await redis.zadd("stratos:files:objects", {place: 0}, xx=True)
        await eventually(lambda: not list((tmp_path / "blobs").rglob("file-*")), "its bytes are deleted")
        assert (await upload(world, lines(1))).status_code == 200


async def test_what_is_no_batch_is_refused_by_its_line(worlds: list[AdminWorld]) -> None:
    one, _ = worlds
    wrong = await upload(one, lines(999) + b"{no json}\n")
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (400, "invalid_file")
    assert "line 1000" in wrong.json()["error"]["message"]
    assert (await upload(one, lines(1), purpose="fine-tune")).json()["error"]["param"] == "purpose"
    assert (await upload(one, lines(1), more="x")).json()["error"]["param"] == "more"
    kept = {"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}
    found = (await upload(one, lines(1), **kept)).json()
    assert found["expires_at"] - found["created_at"] == 3600
    assert (await upload(one, lines(1), **{**kept, "expires_after[seconds]": "5"})).status_code == 400
    cut = {"content-type": "multipart/form-data; boundary=x"}
    answer = await call(
        one, "POST", PATH, content=b'--x\r\nContent-Disposition: form-data; name="purpose"', headers=cut
    )
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_form")
    assert (await call(one, "GET", PATH)).json()["data"][0]["id"] == found["id"]


async def refused_beside_a_neighbour(world: AdminWorld, content: Any) -> str:
    """What an upload is refused with, while another tenant asks and is answered."""
    uploading = asyncio.create_task(upload(world, content))
    statuses = []
    while not uploading.done():
        body = {"model": "base", "prompt": "go", "max_tokens": 2}
        statuses.append((await call(world, "POST", "/v1/completions", by="stranger", json=body)).status_code)
    answer = await uploading
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_file")
    assert set(statuses) == {200}
    return str(answer.json()["error"]["message"])


async def test_a_line_of_10_mb_is_refused_and_disturbs_no_neighbour(worlds: list[AdminWorld]) -> None:
    message = await refused_beside_a_neighbour(worlds[0], lines(2) + lines(1, "x" * 10_000_000) + lines(1))
    assert "line 3" in message
    assert "longer than 1048576 bytes" in message
    assert (await call(worlds[0], "GET", PATH)).json()["data"] == []


@pytest.mark.slow
async def test_wrong_json_in_one_of_a_million_lines_is_named(redis_url: str, tmp_path: Path) -> None:
    async with stream_worlds(redis_url, tmp_path, num=1) as [world]:
        begin, end = lines(1, "go").split(b"c0")
        with io.BytesIO() as file:
            file.writelines(begin + b"c%d" % number + end for number in range(999_998))
            file.write(b'{"custom_id": "last", }\n')
            file.seek(0)
            message = await refused_beside_a_neighbour(world, file)
        assert "line 999999" in message
        assert "not JSON" in message


async def test_a_tenant_has_so_much_and_what_was_deleted_makes_room(redis_url: str, tmp_path: Path) -> None:
    async with stream_worlds(redis_url, tmp_path, num=1, files={"tenant_bytes": 30_000, "sweep_s": 0.02}) as [world]:
        content = lines(150)
        first = await upload(world, content)
        second = await upload(world, content)
        assert (second.status_code, second.json()["error"]["code"]) == (429, "insufficient_quota")
        assert (await upload(world, content, by="stranger")).status_code == 200
        await call(world, "DELETE", f"{PATH}/{first.json()['id']}")
        assert (await upload(world, content)).status_code == 200
        await eventually(lambda: len(list((tmp_path / "blobs").rglob("file-*"))) == 2, "objects of no file are deleted")


async def test_a_file_that_is_too_large_is_refused(redis_url: str, tmp_path: Path) -> None:
    async with stream_worlds(redis_url, tmp_path, num=1, files={"max_bytes": 1000}) as [world]:
        assert (await upload(world, lines(100))).status_code == 413


async def test_a_file_is_gone_once_its_time_is_over(redis_url: str, tmp_path: Path) -> None:
    async with stream_worlds(redis_url, tmp_path, num=1, files={"kept_s": 1.0, "sweep_s": 0.02}) as [world]:
        found = (await upload(world, lines(1))).json()

        async def is_gone() -> bool:
            return (await call(world, "GET", f"{PATH}/{found['id']}/content")).status_code == 404

        await eventually(is_gone, "the file is gone")
        assert (await call(world, "GET", PATH)).json()["data"] == []


async def test_a_file_that_cannot_be_read_is_an_error_with_its_code(
    worlds: list[AdminWorld], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No status 200 whose body ends before its first byte."""
    one, two = worlds
    at = f"{PATH}/{(await upload(one, lines(1))).json()['id']}/content"
    [stored] = (tmp_path / "blobs").rglob("file-*")
    stored.write_bytes(b"altered")
    gone = await call(two, "GET", at)
    assert (gone.status_code, gone.json()["error"]["code"]) == (404, "not_found")

    async def read(*asked: Any) -> bytes:
        raise DependencyDown("the object store does not answer")

    monkeypatch.setattr(LocalStore, "read", read)
    away = await call(two, "GET", at, headers={"range": "bytes=0-9"})
    assert (away.status_code, away.json()["error"]["code"]) == (503, "dependency_unavailable")
