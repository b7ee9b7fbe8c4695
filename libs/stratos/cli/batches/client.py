"""Batches over the API of a gateway: uploads and downloads go through the disk, never through memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import orjson

from stratos.common.error_codes import error_from_code
from stratos.common.errors import BadRequest, DependencyDown

_TIMEOUT = httpx.Timeout(900.0, connect=5.0)
_CHUNK_BYTES = 1 << 20
ENDED = ("completed", "failed", "expired", "cancelled")


class BatchClient:
    """One gateway with one key; every method raises what the API answers, ``DependencyDown`` where it does not.

    Args:
        base_url: of the OpenAI API, ends in /v1.
        api_key: of the tenant.
    """

    def __init__(self, base_url: str, api_key: str) -> None:
        headers = {"authorization": f"Bearer {api_key}"}
        self._http = httpx.Client(base_url=base_url, headers=headers, timeout=_TIMEOUT, trust_env=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def submit(self, path: Path, metadata: Mapping[str, str]) -> dict[str, Any]:
        """Upload a file, and begin a batch of it for the endpoint of its first line."""
        endpoint = first_endpoint(path)
        with path.open("rb") as content:
            file = self._call("POST", "files", data={"purpose": "batch"}, files={"file": (path.name, content)})
        body = {"input_file_id": file["id"], "endpoint": endpoint, "completion_window": "24h"}
        return self._call("POST", "batches", json={**body, "metadata": dict(metadata)})

    def show(self, batch_id: str) -> dict[str, Any]:
        """A batch as it stands."""
        return self._call("GET", f"batches/{batch_id}")

    def cancel(self, batch_id: str) -> dict[str, Any]:
        """End a batch."""
        return self._call("POST", f"batches/{batch_id}/cancel")

    def fetch(self, file_id: str, path: Path) -> int:
        """Download a file to ``path``, which is there as a whole or not at all; its size."""
        part = path.with_name(f".{path.name}.part")
        try:
            with self._http.stream("GET", f"files/{file_id}/content") as answer:
                if answer.is_error:
                    answer.read()
                    raise _error(answer)
                with part.open("wb") as out:
                    for chunk in answer.iter_bytes(_CHUNK_BYTES):
                        out.write(chunk)
        except httpx.HTTPError as error:
            part.unlink(missing_ok=True)
            raise _down(error) from error
        part.rename(path)
        return path.stat().st_size

    def _call(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        try:
            answer = self._http.request(method, path, **more)
            if answer.is_error:
                raise _error(answer)
            found: dict[str, Any] = answer.json()
        except (httpx.HTTPError, ValueError) as error:
            raise _down(error) from error
        return found


def first_endpoint(path: Path) -> str:
    """The route of a file's first line; raises ``BadRequest`` where it has none."""
    try:
        with path.open("rb") as content:
            return str(orjson.loads(content.readline(_CHUNK_BYTES + 1))["url"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadRequest(f"{path}: its first line is no request of a batch: {error}") from error


def progress_text(batch: Mapping[str, Any], width: int = 30) -> str:
    """A batch as one line: a bar, lines that are done, its status."""
    counts = batch["request_counts"]
    total, done = counts["total"], counts["completed"] + counts["failed"]
    filled = width * done // total if total else 0
    bar = "#" * filled + "." * (width - filled)
    failed = f", {counts['failed']} failed" if counts["failed"] else ""
    return f"[{bar}] {done}/{total} lines{failed}, {batch['status']}"


def _error(answer: httpx.Response) -> Exception:
    try:
        found = answer.json()["error"]
        return error_from_code(str(found["code"]), str(found["message"]))
    except (ValueError, KeyError, TypeError):
        return DependencyDown(f"the gateway answers {answer.status_code}")


def _down(error: Exception) -> DependencyDown:
    return DependencyDown(f"the gateway does not answer: {error or type(error).__name__}")
