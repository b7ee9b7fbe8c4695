"""What ``stratos up`` tells, where it is read no more."""

from __future__ import annotations

import errno
import io
from pathlib import Path

import pytest

from stratos.cli import up
from stratos.cli.local.options import UpOptions


class Gone(io.StringIO):
    """Output to a terminal that was closed."""

    def write(self, text: str) -> int:
        raise OSError(errno.EIO, "Input/output error")


def test_an_output_that_is_gone_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The defect: a process that crashed then was not started again, and a closed terminal left the run's folder."""
    monkeypatch.setattr("sys.stdout", Gone())
    assert up.run_up(UpOptions(model_path=Path("/nowhere"))) == 1
