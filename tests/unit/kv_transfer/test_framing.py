"""Cutting a hand-off into frames, and knowing when all of it is there."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratos.core.kv import KvGeometry, KvRange
from stratos.kv_transfer.framing import Coverage, checksum, digest_of, plan_frames


def geometry(num_layers=6, num_kv_heads=4, head_dim=32, block_size=16, element_bytes=4):
    return KvGeometry(
        num_layers=num_layers,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        block_size=block_size,
        element_bytes=element_bytes,
    )


geometries = st.builds(
    geometry, num_layers=st.integers(1, 7), num_kv_heads=st.integers(1, 3), head_dim=st.integers(1, 8),
    block_size=st.sampled_from([1, 4, 16]), element_bytes=st.sampled_from([1, 2, 4]),
)  # fmt: skip


@given(geometries, st.integers(0, 50), st.integers(1, 60), st.integers(0, 4000))
def test_planned_frames_fit_and_cover_every_cell_once(shape, begin, length, extra_bytes):
    slot_bytes = shape.token_bytes // shape.num_layers + extra_bytes
    frames = plan_frames(begin, begin + length, shape, slot_bytes)
    assert all(0 < shape.num_bytes(frame) <= slot_bytes for frame in frames)
    cells = [
        (token, layer)
        for frame in frames
        for token in range(frame.token_begin, frame.token_end)
        for layer in range(frame.layer_begin, frame.layer_end)
    ]
    assert len(cells) == len(set(cells))
    assert set(cells) == {(t, layer) for t in range(begin, begin + length) for layer in range(shape.num_layers)}
    assert [f.token_begin for f in frames] == sorted(f.token_begin for f in frames)
    if slot_bytes >= shape.token_bytes:
        assert all(f.layer_end - f.layer_begin == shape.num_layers for f in frames), "layers were cut without need"


def test_frames_end_at_block_boundaries_where_a_block_fits():
    shape = geometry()
    frames = plan_frames(5, 100, shape, 40 * shape.token_bytes)
    assert [(f.token_begin, f.token_end) for f in frames] == [(5, 32), (32, 64), (64, 100)]


def test_layers_are_cut_only_when_one_token_does_not_fit():
    shape = geometry(num_layers=5)
    frames = plan_frames(0, 2, shape, shape.token_bytes // 5 * 2)
    assert frames[:3] == [KvRange(0, 1, 0, 2), KvRange(0, 1, 2, 4), KvRange(0, 1, 4, 5)]


@pytest.mark.parametrize(("begin", "end", "slot_bytes"), [(0, 0, 9999), (3, 2, 9999), (-1, 2, 9999), (0, 2, 1023)])
def test_impossible_plans_are_refused(begin, end, slot_bytes):
    with pytest.raises(ValueError, match=r"no tokens|slot_bytes must be"):
        plan_frames(begin, end, geometry(), slot_bytes)


def test_checksum_and_digest_are_what_the_protocol_says():
    payload = b"kv" * 100
    assert checksum(payload) == int.from_bytes(hashlib.sha256(payload).digest()[:8], "little")
    assert checksum(memoryview(payload)) != checksum(payload[:-1])
    assert digest_of([1, 2]) == hashlib.sha256((1).to_bytes(8, "little") + (2).to_bytes(8, "little")).digest()
    assert digest_of([1, 2]) != digest_of([2, 1])


frames_inside = st.builds(
    lambda t, dt, layer, dl: KvRange(t, t + dt, layer, layer + dl),
    st.integers(-1, 12), st.integers(0, 6), st.integers(-1, 3), st.integers(0, 3),
)  # fmt: skip


@given(st.lists(frames_inside, max_size=40))
def test_coverage_agrees_with_a_set_of_cells(frames):
    """Frames of any kind arrive; those that are outside or overlap change nothing."""
    begin, end, num_layers = 2, 12, 3
    coverage = Coverage(begin, end, num_layers)
    cells: set[tuple[int, int]] = set()
    for frame in frames:
        new = {
            (t, layer)
            for t in range(frame.token_begin, frame.token_end)
            for layer in range(frame.layer_begin, frame.layer_end)
        }
        inside = all(begin <= t < end and 0 <= layer < num_layers for t, layer in new)
        if new and inside and not new & cells:
            coverage.add(frame)
            cells |= new
        else:
            with pytest.raises(ValueError, match="KvRange"):
                coverage.add(frame)
        complete = [t for t in range(begin, end) if all((t, layer) in cells for layer in range(num_layers))]
        verified = begin
        while verified in complete:
            verified += 1
        assert coverage.verified_tokens == verified
        assert coverage.is_complete == (len(cells) == (end - begin) * num_layers)


@given(st.randoms(use_true_random=False), st.integers(1, 200))
def test_a_plan_in_any_order_completes_coverage_with_its_last_frame(random, slot_tokens):
    shape = geometry(num_layers=3, num_kv_heads=1, head_dim=1)
    frames = plan_frames(7, 97, shape, shape.token_bytes * slot_tokens // 20 + shape.token_bytes // 3)
    random.shuffle(frames)
    coverage = Coverage(7, 97, 3)
    for frame in frames:
        assert not coverage.is_complete
        coverage.add(frame)
    assert coverage.is_complete
    assert coverage.verified_tokens == 97


def test_coverage_of_nothing_is_complete():
    assert Coverage(5, 5, 2).is_complete
    with pytest.raises(ValueError, match="bad coverage"):
        Coverage(5, 4, 2)
