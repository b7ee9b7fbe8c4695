"""The evaluation's S3 server: what it refuses, and how much of a body it believes."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from stratos.store.local_store import LocalStore
from stratos.store.served.server import KEY_ID, ObjectServer

SECRET = "0123456789abcdef"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ObjectServer]:
    (tmp_path / "objects").mkdir()
    found = ObjectServer(("127.0.0.1", 0), LocalStore(tmp_path / "objects"), "stratos", SECRET, tmp_path)
    thread = threading.Thread(target=found.serve_forever)
    thread.start()
    yield found
    found.shutdown()
    thread.join()
    found.server_close()


def client(server: ObjectServer, key_id: str = KEY_ID, secret: str = SECRET) -> Any:
    return boto3.session.Session().client(
        "s3",
        endpoint_url=f"http://127.0.0.1:{server.server_port}",
        region_name="us-east-1",
        aws_access_key_id=key_id,
        aws_secret_access_key=secret,
        config=Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1},
                      request_checksum_calculation="when_required"),
    )  # fmt: skip


def refused(call: Any, **arguments: Any) -> str:
    with pytest.raises(ClientError) as found:
        call(**arguments)
    return str(found.value.response["Error"]["Code"])


def test_another_key_or_bucket_is_refused(server: ObjectServer) -> None:
    client(server).put_object(Bucket="stratos", Key="a b/c+d.txt", Body=b"here")
    assert client(server).get_object(Bucket="stratos", Key="a b/c+d.txt")["Body"].read() == b"here"
    for stranger in (client(server, secret=SECRET[::-1]), client(server, key_id="other")):
        for call in (stranger.get_object, stranger.put_object, stranger.delete_object):
            assert refused(call, Bucket="stratos", Key="a b/c+d.txt") == "SignatureDoesNotMatch"
        assert refused(stranger.list_objects_v2, Bucket="stratos", Prefix="a b/") == "SignatureDoesNotMatch"
    assert refused(client(server).get_object, Bucket="elsewhere", Key="x") == "NoSuchBucket"
    assert refused(client(server).get_object, Bucket="stratos", Key="a b/none") == "NoSuchKey"


@pytest.mark.parametrize("key", ["../outside", ".hidden", "a//b"])
def test_no_key_leads_out_of_the_folder(server: ObjectServer, key: str) -> None:
    assert refused(client(server).put_object, Bucket="stratos", Key=key, Body=b"x") in ("InvalidArgument", "NoSuchKey")


def test_an_unsigned_request_learns_nothing_and_the_probe_needs_no_signature(server: ObjectServer) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port)
    for path, status in (("/healthz", 200), ("/stratos?list-type=2", 403), ("/stratos/key", 403)):
        connection.request("GET", path)
        answer = connection.getresponse()
        assert (answer.status, b"Contents" in answer.read()) == (status, False)
    connection.close()


def test_a_body_that_was_not_signed_is_not_kept(server: ObjectServer) -> None:
    """A signed request with another body of the same length."""

    def swap(request: Any, **_: Any) -> None:
        request.body = b"fake"

    meddled = client(server)
    meddled.meta.events.register("before-send.s3.PutObject", swap)
    assert refused(meddled.put_object, Bucket="stratos", Key="k", Body=b"true") == "XAmzContentSHA256Mismatch"
    assert refused(client(server).get_object, Bucket="stratos", Key="k") == "NoSuchKey"


def test_a_refused_body_is_read_so_that_its_connection_serves_the_next_request(server: ObjectServer) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port)
    for _ in range(2):
        connection.request("PUT", "/stratos/key", body=b"x" * 70_000)
        answer = connection.getresponse()
        assert (answer.status, answer.getheader("Connection"), answer.read()[:7]) == (403, None, b"<Error>")
    connection.close()


def test_the_answer_to_a_body_that_is_too_long_to_be_read_says_that_the_connection_ends(server: ObjectServer) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port)
    connection.putrequest("PUT", "/stratos/key")
    connection.putheader("Content-Length", str(1 << 30))
    connection.endheaders()
    answer = connection.getresponse()
    assert (answer.status, answer.getheader("Connection"), answer.read()[:7]) == (403, "close", b"<Error>")
    connection.close()
