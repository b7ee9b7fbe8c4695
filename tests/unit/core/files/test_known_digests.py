"""The file of known digests: absent, of other numerics, senseless."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratos.common.errors import InvalidCheckpoint
from stratos.core.files.known_digests import KNOWN_DIGESTS_NAME, read_known_digest


def test_a_digest_is_found_by_its_numerics_alone(tmp_path: Path) -> None:
    assert read_known_digest(None, "cpu/a") is None
    assert read_known_digest(tmp_path, "cpu/a") is None
    (tmp_path / KNOWN_DIGESTS_NAME).write_text('{"digests": {"cpu/a": "00ff"}}')
    assert read_known_digest(tmp_path, "cpu/a") == b"\x00\xff"
    assert read_known_digest(tmp_path, "cpu/b") is None


@pytest.mark.parametrize("content", ["[]", "{}", '{"digests": {"cpu/a": 7}}', '{"digests": {"cpu/a": "xy"}}'])
def test_nonsense_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / KNOWN_DIGESTS_NAME).write_text(content)
    with pytest.raises(InvalidCheckpoint, match=KNOWN_DIGESTS_NAME):
        read_known_digest(tmp_path, "cpu/a")
