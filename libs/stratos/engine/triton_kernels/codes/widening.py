"""Tiles of codes to the numbers that they stand for, before their scales; parts of the kernels of this folder.

By bits alone, so that every GPU can: e4m3 and e2m1 are put where float16 has exponent and mantissa, and multiplied by
the difference of the biases.  That is exact, small numbers included.
"""

import triton
import triton.language as tl

from stratos.engine.checkpoint.weight_schemes import INT4_ZERO, NVFP4_GROUP, LinearScheme

INT4, FP8, MXFP4, NF4, NVFP4 = (
    tl.constexpr(int(scheme))
    for scheme in (LinearScheme.INT4, LinearScheme.FP8, LinearScheme.MXFP4, LinearScheme.NF4, LinearScheme.NVFP4)
)
ZERO, NVFP4_INPUTS = tl.constexpr(INT4_ZERO), tl.constexpr(NVFP4_GROUP)


@triton.jit
def e4m3_numbers(codes):
    """float16 numbers of bytes."""
    bits = codes.to(tl.uint16)
    return (((bits & 0x7F) << 7) | ((bits & 0x80) << 8)).to(tl.float16, bitcast=True) * 256.0


@triton.jit
def e2m1_numbers(codes):
    """float16 numbers of codes of four bits."""
    bits = codes.to(tl.uint16)
    return (((bits & 7) << 9) | ((bits & 8) << 12)).to(tl.float16, bitcast=True) * 16384.0


@triton.jit
def power_of_two(exponents):
    """float32 of the bytes of exponents; 0 is the one below the least normal number."""
    bits = tl.where(exponents == 0, 0x400000, exponents.to(tl.int32) << 23)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def numbers_of(
    codes,
    parts,
    table,
    columns,
    is_column,
    begin,
    num_in,
    num_out,
    SCHEME: tl.constexpr,
    GROUP: tl.constexpr,
    COLUMNS: tl.constexpr,
    STEP: tl.constexpr,
    dtype: tl.constexpr,
):
    """Tile [COLUMNS, STEP] of a weight from input ``begin`` on, in ``dtype``; what lies outside is a number, too."""
    if (SCHEME == INT4) | (SCHEME == MXFP4) | (SCHEME == NF4) | (SCHEME == NVFP4):
        places = begin // 2 + tl.arange(0, STEP // 2)
        is_inside = is_column[:, None] & (places < num_in // 2)[None, :]
        pairs = tl.load(codes + columns.to(tl.int64)[:, None] * (num_in // 2) + places[None, :], is_inside, other=0)
        tile = tl.reshape(tl.join(pairs & 15, pairs >> 4), [COLUMNS, STEP])
    else:
        inputs = begin + tl.arange(0, STEP)
        is_inside = is_column[:, None] & (inputs < num_in)[None, :]
        tile = tl.load(codes + columns.to(tl.int64)[:, None] * num_in + inputs[None, :], is_inside, other=0)
    if SCHEME == INT4:
        if parts is not None:
            at = begin // GROUP if GROUP > 0 else 0
            zeros = tl.load(parts + at * num_out + columns, is_column, other=ZERO)
            numbers = tile.to(tl.int16) - zeros.to(tl.int16)[:, None]
        else:
            numbers = tile.to(tl.int16) - ZERO
    elif SCHEME == FP8:
        numbers = e4m3_numbers(tile)
    elif SCHEME == NF4:
        numbers = tl.load(table + tile.to(tl.int32))
    elif SCHEME == MXFP4:
        numbers = e2m1_numbers(tile)
    elif SCHEME == NVFP4:
        blocks = begin // NVFP4_INPUTS + tl.arange(0, STEP // NVFP4_INPUTS)
        num_blocks = num_in // NVFP4_INPUTS
        is_block = is_column[:, None] & (blocks < num_blocks)[None, :]
        scales = tl.load(parts + columns.to(tl.int64)[:, None] * num_blocks + blocks[None, :], is_block, other=0)
        spread = tl.broadcast_to(
            e4m3_numbers(scales)[:, :, None], [COLUMNS, STEP // NVFP4_INPUTS, NVFP4_INPUTS]
        )  # 2 and 4 bits of mantissa: the product is exact in every type
        numbers = e2m1_numbers(tile) * tl.reshape(spread, [COLUMNS, STEP])
    else:
        numbers = tile
    return numbers.to(tl.float32).to(dtype)  # the interpreter knows no other way from integers to bfloat16
