"""A batch as clients see it."""

from __future__ import annotations

from typing import Any

from stratos.store.sealed.batch_store import StoredBatch


def batch_object(batch: StoredBatch) -> dict[str, Any]:
    """The fields of OpenAI."""

    def at(status: str) -> int | None:
        return batch.ended_unix_s if batch.status == status else None

    errors = None
    if batch.problem:
        error = {"code": "batch_failed", "message": batch.problem, "param": None, "line": None}
        errors = {"object": "list", "data": [error]}
    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.head.endpoint,
        "errors": errors,
        "input_file_id": batch.head.input_file_id,
        "completion_window": batch.head.window,
        "status": batch.status,
        "output_file_id": batch.output_file_id or None,
        "error_file_id": batch.error_file_id or None,
        "created_at": batch.created_unix_s,
        "in_progress_at": batch.begun_unix_s or None,
        "expires_at": batch.expires_unix_s,
        "finalizing_at": batch.finalizing_unix_s or None,
        "completed_at": at("completed"),
        "failed_at": at("failed"),
        "expired_at": at("expired"),
        "cancelling_at": batch.cancelling_unix_s or None,
        "cancelled_at": at("cancelled"),
        "request_counts": {
            "total": batch.num_lines,
            "completed": batch.num_completed,
            "failed": batch.num_failed,
        },
        "metadata": dict(batch.head.metadata) or None,
    }
