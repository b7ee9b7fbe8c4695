"""Messages that wait for the stream with a worker; what is there at the same time leaves in one message.

A message of gRPC costs more in being written, at either end, than in what it carries.  What is put behind another one
is made in it: a message that is made by itself would be written and read once more to get there.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from stratos.api.worker.v1 import decode_pb2
from stratos.common.background import gather_more
from stratos.rpc.codec.fields import Part
from stratos.rpc.codec.unknown_fields import leave_out_later_fields

MAX_WAITING = 4096
MAX_PER_MESSAGE = 64
MAX_PROMPT_IDS = 100_000
"""Of all prompts in one message, unless a single one has more: a message has at most 64 MiB."""


@dataclass(slots=True)
class _Growing:
    first: decode_pb2.SessionRequest
    num_ids: int
    """Token ids of all its prompts."""
    num: int = 1

    def add(self, part: Part, num_ids: int) -> None:
        """Make a message behind the others; raises what its constructor does."""
        further = self.first.further
        try:
            further.add(**part)
        except BaseException:
            del further[self.num - 1 :]  # what there is of it
            raise
        self.num, self.num_ids = self.num + 1, self.num_ids + num_ids


class SessionOutbox:
    """Belongs to the event loop."""

    def __init__(self) -> None:
        self.takes_further = False
        """The worker takes several messages in one; one of 0.1 does not, and refuses fields that it does not know."""
        self._waiting: deque[_Growing] = deque()
        self._num_waiting = 0
        self._news = asyncio.Event()

    def put(self, part: Part) -> bool:
        """Send a message, of which these are the fields, in a moment; false where too many wait."""
        if self._num_waiting >= MAX_WAITING:
            return False
        num_ids = len(part["submit"]["prompt_ids"]) if "submit" in part else 0
        last = self._waiting[-1] if self._waiting and self.takes_further else None
        if last is not None and last.num < MAX_PER_MESSAGE and last.num_ids + num_ids <= MAX_PROMPT_IDS:
            last.add(part, num_ids)
        else:
            self._waiting.append(_Growing(self._made(part), num_ids))
        self._num_waiting += 1
        self._news.set()
        return True

    def _made(self, part: Part) -> decode_pb2.SessionRequest:
        message = decode_pb2.SessionRequest(**part)
        if not self.takes_further:
            leave_out_later_fields(message)
        return message

    async def take(self) -> decode_pb2.SessionRequest:
        """Wait for messages; returns the first of them, with what fits behind it."""
        while not self._waiting:
            self._news.clear()
            await self._news.wait()
            await gather_more(lambda: self._num_waiting, MAX_PER_MESSAGE)
        taken = self._waiting.popleft()
        self._num_waiting -= taken.num
        return taken.first
