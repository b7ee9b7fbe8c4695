"""``stratos explain``: a receipt as text for people."""

from __future__ import annotations

from stratos.cli.money.receipts import receipt_text

RECEIPT = {
    "object": "request.receipt",
    "id": "req-1",
    "generations": [
        {
            "prompt_tokens": 4,
            "attempts": [
                {
                    "worker": "decode-0",
                    "prefill": [],
                    "queue": [[0, 3], [250, 1]],
                    "candidates": {"decode-0": 0.75, "decode-1": 0.5},
                    "rejected": {"decode-2": "kv_room"},
                    "others": 0,
                },
                {"worker": "decode-1", "queue": [], "candidates": {"decode-1": 0.5}, "rejected": {}, "others": 0},
            ],
        }
    ],
    "answer": {"outcome": "failed", "error": "overloaded", "shed_reason": "queue_full", "queue": [[0, 9], [40, 8]]},
}


def test_an_attempt_says_what_it_was_chosen_from_and_where_it_stood() -> None:
    first, second = (line.strip() for line in receipt_text(RECEIPT).splitlines() if "attempt" in line)
    assert first == (
        "attempt 0  worker decode-0, queue 3@0ms 1@250ms, candidates decode-0=0.75 decode-1=0.5, "
        "rejected decode-2=kv_room, others 0"
    )
    assert second == "attempt 1  worker decode-1, candidates decode-1=0.5, others 0"


def test_a_refusal_says_why() -> None:
    assert "shed_reason queue_full, queue 9@0ms 8@40ms" in receipt_text(RECEIPT)
