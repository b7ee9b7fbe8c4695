"""The file of known digests: absent, of other numerics, of other weights, senseless."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stratos.common.errors import InvalidCheckpoint
from stratos.core.files.known_digests import KNOWN_DIGESTS_NAME, read_known_digest
from stratos.core.kv import KvIdentity

MINE = KvIdentity(model_digest="ab", kv_dtype="float32", rope_variant="none", numerics_id="cpu/a")


def test_a_digest_is_found_by_its_weights_and_numerics(tmp_path: Path) -> None:
    assert read_known_digest(None, MINE) is None
    assert read_known_digest(tmp_path, MINE) is None
    (tmp_path / KNOWN_DIGESTS_NAME).write_text('{"model_digest": "ab", "digests": {"cpu/a": "00ff"}}')
    assert read_known_digest(tmp_path, MINE) == b"\x00\xff"
    assert read_known_digest(tmp_path, replace(MINE, numerics_id="cpu/b")) is None
    assert read_known_digest(tmp_path, replace(MINE, model_digest="cd")) is None, "a copy with changed weights is sound"


def test_a_file_that_does_not_name_its_weights_says_nothing(tmp_path: Path) -> None:
    (tmp_path / KNOWN_DIGESTS_NAME).write_text('{"digests": {"cpu/a": "00ff"}}')
    assert read_known_digest(tmp_path, MINE) is None


NONSENSE = ["[]", "{}", '{"digests": {"cpu/a": 7}}', '{"model_digest": "ab", "digests": {"cpu/a": "xy"}}']


@pytest.mark.parametrize("content", NONSENSE)
def test_nonsense_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / KNOWN_DIGESTS_NAME).write_text(content)
    with pytest.raises(InvalidCheckpoint, match=KNOWN_DIGESTS_NAME):
        read_known_digest(tmp_path, MINE)
