"""A fork has none of its parent's threads, and its log lines are written all the same."""

from __future__ import annotations

import logging
import os

from stratos.rpc.log_thread import LogThread


def test_a_fork_which_has_no_such_thread_writes_by_itself() -> None:
    record = logging.makeLogRecord({"msg": "of the fork"})
    read_fd, write_fd = os.pipe()
    written = os.fdopen(write_fd, "w")
    handler = LogThread(logging.StreamHandler(written))
    if not (pid := os.fork()):
        try:
            handler.handle(record)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    with os.fdopen(read_fd) as stream:
        assert stream.readline() == "of the fork\n"
    handler.close()
    written.close()
