"""Messages that wait for the stream with a worker; what is there at the same time leaves in one message.

A message of gRPC costs more in being written, at either end, than in what it carries.
"""

from __future__ import annotations

import asyncio
from collections import deque

from stratos.api.worker.v1 import decode_pb2

MAX_WAITING = 4096
MAX_PER_MESSAGE = 64
MAX_PROMPT_IDS = 100_000
"""Of all prompts in one message, unless a single one has more: a message has at most 64 MiB."""


class SessionOutbox:
    """Belongs to the event loop."""

    def __init__(self) -> None:
        self.takes_further = False
        """The worker takes several messages in one."""
        self._waiting: deque[decode_pb2.SessionRequest] = deque()
        self._news = asyncio.Event()

    def put(self, message: decode_pb2.SessionRequest) -> bool:
        """Send a message in a moment; false where too many wait."""
        if len(self._waiting) >= MAX_WAITING:
            return False
        self._waiting.append(message)
        self._news.set()
        return True

    async def take(self) -> decode_pb2.SessionRequest:
        """Wait for messages; returns the first of them, with what fits behind it."""
        while not self._waiting:
            self._news.clear()
            await self._news.wait()
        first, behind = self._waiting.popleft(), list[decode_pb2.SessionRequest]()
        num_ids = len(first.submit.prompt_ids)
        while self.takes_further and self._waiting and len(behind) + 1 < MAX_PER_MESSAGE:
            num_ids += len(self._waiting[0].submit.prompt_ids)
            if num_ids > MAX_PROMPT_IDS:
                break
            behind.append(self._waiting.popleft())
        if behind:
            first.further.extend(behind)
        return first
