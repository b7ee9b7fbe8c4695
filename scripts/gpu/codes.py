"""Products of weights that stay codes beside the framework's of bfloat16: time by scheme, shape and rows."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F

from scripts.gpu.products import COPY_BYTES, SHAPES
from scripts.gpu.rig import Rig
from stratos.engine.checkpoint.rounding import rounded
from stratos.engine.checkpoint.weight_schemes import LinearScheme
from stratos.engine.layers.triton_linear import TritonCodesFactory
from tests.support.reference.made_codes import made_codes

KINDS = ("int4", "fp8", "mxfp4", "nf4", "int8", "llm-int8")
"""Made as at load; NVFP4 has no such name."""
MEASURED = ("output", "gate_up", "down")
BATCHES = (1, 8, 16, 64, 512)
"""Rows; 64 is what fp8 and 16 what int4 promise a gain for."""
MOST_ERROR = 0.02
"""Of the largest result, by rounding to bfloat16: more is a wrong kernel."""


def run(rig: Rig) -> None:
    """Section ``codes``."""
    for name in MEASURED[:1] if rig.is_rehearsal else MEASURED:
        shape = (64, 64) if rig.is_rehearsal else SHAPES[name]
        rig.attempt(f"{name}_speed_up", partial(_speed_up, rig, *shape))
    rig.attempt("errors", lambda: _errors(rig))


def _speed_up(rig: Rig, num_out: int, num_in: int) -> dict[str, dict[str, float]]:
    """Time of bfloat16 over that of codes, by scheme and rows; all copies of a weight are read in turn."""
    copies = 2 if rig.is_rehearsal else max(2, COPY_BYTES // (2 * num_out * num_in))
    weights = [torch.randn(num_out, num_in, dtype=rig.dtype, device=rig.device) for _ in range(copies)]
    batches = BATCHES[:2] if rig.is_rehearsal else BATCHES
    rows = {count: torch.randn(count, num_in, dtype=rig.dtype, device=rig.device) for count in batches}
    floats = {count: rig.seconds([partial(F.linear, x, weight) for weight in weights]) for count, x in rows.items()}
    factory, found = TritonCodesFactory(rig.device, rig.dtype, is_exact=False), {}
    for kind in KINDS:
        codes = rounded(weights[0].cpu(), kind)
        layers = [factory(codes) for _ in range(4 * copies)]
        times = {count: rig.seconds([partial(layer, x) for layer in layers]) for count, x in rows.items()}
        found[kind] = {str(count): round(floats[count] / times[count], 2) for count in batches}
    return found


def _errors(rig: Rig) -> dict[str, float]:
    """Largest difference from the floats that the codes stand for, as a share of the largest result."""
    schemes = [(LinearScheme.NVFP4, 0), (LinearScheme.INT4, 32), (LinearScheme.INT8, 0), (LinearScheme.FP8, 128)]
    schemes += [(LinearScheme.INT8_ROWS, 0), (LinearScheme.LLM_INT8, 0)]
    factory, found = TritonCodesFactory(rig.device, rig.dtype, is_exact=False), {}
    for scheme, group in schemes:
        weight = made_codes(scheme, 64, 128, group)
        x = torch.randn(17, 128, dtype=rig.dtype, device=rig.device)
        expected = F.linear(x.float(), weight.floats().to(rig.device))
        error = float((factory(weight)(x).float() - expected).abs().max() / expected.abs().max())
        if error > MOST_ERROR:
            raise RuntimeError(f"{scheme.label}: results differ by {error:.3f} of the largest")
        found[scheme.label] = round(error, 5)
    return found
