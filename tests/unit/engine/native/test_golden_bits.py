"""Bits of the C++ kernels change only together with the revision of their family, which the numerics id carries."""

from __future__ import annotations

import pytest

from stratos.engine.native.isa import INSTRUCTION_SETS
from stratos.engine.revisions import NATIVE_FAMILIES, REVISIONS, revised
from tests.support.reference.golden_bits import (
    DTYPES,
    FAMILIES,
    digest_of,
    golden_key,
    read_golden,
    revision_of,
)
from tests.support.reference.native_kernels import NATIVE_SETS

REFRESH = "python -m tests.support.reference.golden_bits"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("build", NATIVE_SETS)
@pytest.mark.parametrize("family", FAMILIES)
def test_bits_are_those_of_the_revision(family: str, build: str, dtype: str) -> None:
    golden = read_golden()[family]
    assert golden["revision"] == revision_of(family), f"the revision is another one: {REFRESH}"
    assert digest_of(family, build, dtype) == golden["bits"][golden_key(build, dtype)], (
        f"{family} computes other bits: raise its revision in stratos.engine.revisions, then {REFRESH}"
    )


def test_every_instruction_set_has_golden_bits_of_every_family() -> None:
    golden = read_golden()
    assert set(golden) == set(FAMILIES)
    assert {name.partition("/")[0] for name in golden} == set(NATIVE_FAMILIES)
    keys = {golden_key(isa.name, dtype) for isa in INSTRUCTION_SETS for dtype in DTYPES}
    assert all(set(family["bits"]) == keys for family in golden.values())


@pytest.mark.parametrize("family", REVISIONS)
def test_the_name_in_the_id_has_the_revision(family: str) -> None:
    assert revised(family, "kernel") == f"kernel.r{REVISIONS[family]}"
