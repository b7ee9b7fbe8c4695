"""What workers that obey a test have in common: a server on a port of its own, and a name for placements."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import ClassVar

import grpc.aio

from stratos.core.placement import WorkerRef, WorkerRole


@dataclass
class ScriptedWorker:
    """A worker that does what the test says: the server it answers from, and how placements name it."""

    role: ClassVar[WorkerRole]
    worker_id: str
    _stopping: asyncio.Task[None] | None = field(default=None, init=False)

    def listen(self) -> None:
        """Take a port; the servicer is added, and the server started, by its owner."""
        self.server = grpc.aio.server()
        self.port = self.server.add_insecure_port("127.0.0.1:0")

    async def stop(self) -> None:
        """Stop at once; all callers wait for one end: two stops of a gRPC server at a time can crash the process."""
        if self._stopping is None:
            self._stopping = asyncio.create_task(self.server.stop(0))
        await asyncio.shield(self._stopping)

    @property
    def ref(self) -> WorkerRef:
        return WorkerRef(
            worker_id=self.worker_id,
            incarnation=f"inc-{self.worker_id}",
            address=f"127.0.0.1:{self.port}",
            role=self.role,
        )
