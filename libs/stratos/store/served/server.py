"""An S3 server for evaluation: one folder, one bucket, one key; objects are read, written, deleted, listed.

One pod with one volume stands for the object store of a release, so that no volume has to be mounted by many nodes.
It is no store for production: one process, no copies, no TLS.  What it refuses: requests
without its key's signature, other buckets, bodies that are not those that were signed, bodies in signed chunks.
"""

from __future__ import annotations

import asyncio
import datetime
import hashlib
import hmac
import logging
import re
import sys
import tempfile
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO, BinaryIO
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from stratos.common.errors import BadRequest, NotFound, StratosError
from stratos.store.local_store import LocalStore
from stratos.store.object_store import ObjectInfo
from stratos.store.served.signature import SignedRequest, is_signed

KEY_ID = "stratos"
"""Name of the one key; its secret is given."""
HEALTH_PATH = "/healthz"
_CHUNK_BYTES = 1 << 20
PAGE_KEYS = 1000
"""Keys of one page of a listing, at most, as with S3."""
_RANGE = re.compile(r"bytes=(\d+)-(\d+)\Z")
_log = logging.getLogger(__name__)


class ObjectServer(ThreadingHTTPServer):
    """A thread for each connection.

    Args:
        address: host and port to listen on; port 0 takes a free one.
        store: the folder.
        bucket: the one that there is.
        secret: of the key ``KEY_ID``.
        scratch: folder for bodies until they are whole.
    """

    daemon_threads = True

    def __init__(self, address: tuple[str, int], store: LocalStore, bucket: str, secret: str, scratch: Path) -> None:
        super().__init__(address, _ObjectHandler)
        self.store = store
        self.bucket = bucket
        self.secret = secret
        self.scratch = scratch


class _ObjectHandler(BaseHTTPRequestHandler):
    server: ObjectServer
    protocol_version = "HTTP/1.1"
    timeout = 60  # of a client that sends or takes nothing
    _num_unread = 0  # bytes of the request's body

    def do_GET(self) -> None:
        if self.path == HEALTH_PATH:
            return self._answer(HTTPStatus.OK, b"ok")
        self._serve()

    def do_HEAD(self) -> None:
        self._serve()

    def do_PUT(self) -> None:
        length = self.headers.get("Content-Length", "")
        self._num_unread = int(length) if length.isdigit() else 0
        self._serve()

    def do_DELETE(self) -> None:
        self._serve()

    def log_message(self, format: str, *args: object) -> None:
        _log.debug(format, *args)

    def _serve(self) -> None:
        parts = urlsplit(self.path)
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = SignedRequest(method=self.command, path=parts.path, query=parts.query, headers=headers)
        if not is_signed(request, KEY_ID, self.server.secret, datetime.datetime.now(datetime.UTC)):
            return self._refuse(HTTPStatus.FORBIDDEN, "SignatureDoesNotMatch")
        bucket, _, key = unquote(parts.path).lstrip("/").partition("/")
        if bucket != self.server.bucket:
            return self._refuse(HTTPStatus.NOT_FOUND, "NoSuchBucket")
        try:
            if self.command == "PUT":
                self._put(key)
            elif self.command == "DELETE":
                self._delete(key)
            elif key:
                self._get(key)
            else:
                self._list({name: values[0] for name, values in parse_qs(parts.query).items()})
        except NotFound:
            self._refuse(HTTPStatus.NOT_FOUND, "NoSuchKey")
        except BadRequest:
            self._refuse(HTTPStatus.BAD_REQUEST, "InvalidArgument")
        except StratosError as error:
            _log.warning("%s %s: %s", self.command, parts.path, error.message)
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "ServiceUnavailable")

    def _list(self, query: Mapping[str, str]) -> None:
        """A page of a listing; the next one begins behind the last key of this one."""
        most, after = query.get("max-keys", ""), query.get("continuation-token", "")
        num_keys = min(int(most), PAGE_KEYS) if most.isdigit() else PAGE_KEYS
        found = [o for o in self.server.store.list_some(query.get("prefix", ""), sys.maxsize) if o.key > after]
        page = "".join(map(_entry, found[:num_keys]))
        if len(found) > num_keys > 0:
            last = escape(found[num_keys - 1].key)
            page += f"<IsTruncated>true</IsTruncated><NextContinuationToken>{last}</NextContinuationToken>"
        self._answer(HTTPStatus.OK, f"<ListBucketResult>{page}</ListBucketResult>".encode())

    def _get(self, key: str) -> None:
        with self.server.store.open_object(key) as file:
            size = file.seek(0, 2)
            first, last = 0, size - 1
            if wanted := _RANGE.match(self.headers.get("Range", "")):
                first, last = int(wanted[1]), min(int(wanted[2]), size - 1)
                if first >= size:
                    return self._refuse(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, "InvalidRange")
            self.send_response(HTTPStatus.PARTIAL_CONTENT if wanted else HTTPStatus.OK)
            if wanted:
                self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
            self.send_header("Content-Length", str(last - first + 1))
            self.end_headers()
            if self.command == "GET":
                file.seek(first)
                self._send(file, last - first + 1)

    def _send(self, file: BinaryIO, num_bytes: int) -> None:
        while num_bytes > 0 and (chunk := file.read(min(_CHUNK_BYTES, num_bytes))):
            self.wfile.write(chunk)
            num_bytes -= len(chunk)

    def _put(self, key: str) -> None:
        sized = self.headers.get("Content-Length", "").isdigit()
        if not sized or "aws-chunked" in self.headers.get("Content-Encoding", ""):
            self.close_connection = True
            return self._refuse(HTTPStatus.NOT_IMPLEMENTED, "NotImplemented")
        with tempfile.NamedTemporaryFile(dir=self.server.scratch) as part:
            digest = self._receive(part.file)
            signed = self.headers["x-amz-content-sha256"]
            if signed != "UNSIGNED-PAYLOAD" and not hmac.compare_digest(digest, signed):
                return self._refuse(HTTPStatus.BAD_REQUEST, "XAmzContentSHA256Mismatch")
            asyncio.run(self.server.store.put(key, Path(part.name)))
        self.send_response(HTTPStatus.OK)
        self.send_header("ETag", f'"{digest}"')
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _delete(self, key: str) -> None:
        asyncio.run(self.server.store.delete(key))
        self.send_response(HTTPStatus.NO_CONTENT)
        self.end_headers()

    def _read_body(self) -> bytes:
        """The next bytes of the body; none when it is over, or its client ended it early."""
        chunk = self.rfile.read(min(_CHUNK_BYTES, self._num_unread))
        self._num_unread -= len(chunk)
        return chunk

    def _receive(self, file: IO[bytes]) -> str:
        """Write the body into ``file``; returns its SHA-256. One that ends early is cut, and its digest another."""
        digest = hashlib.sha256()
        while chunk := self._read_body():
            digest.update(chunk)
            file.write(chunk)
        file.flush()
        if self._num_unread:
            raise BadRequest("the body ended before its length")
        return digest.hexdigest()

    def _answer(self, status: HTTPStatus, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")  # or its client sends the next request into a closed one
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _refuse(self, status: HTTPStatus, code: str) -> None:
        # Closing over unread bytes resets the connection, and the answer may be lost with it.
        while 0 < self._num_unread <= _CHUNK_BYTES and self._read_body():
            pass
        self.close_connection |= self._num_unread > 0
        self._answer(status, f"<Error><Code>{code}</Code><Message>{status.phrase}</Message></Error>".encode())


def _entry(info: ObjectInfo) -> str:
    written = datetime.datetime.fromtimestamp(info.written_unix_s, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    parts = f"<Key>{escape(info.key)}</Key><LastModified>{written}</LastModified><Size>{info.num_bytes}</Size>"
    return f"<Contents>{parts}</Contents>"
