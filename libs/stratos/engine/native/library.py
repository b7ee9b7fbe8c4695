"""Loads the compiled kernels and declares their C interface."""

from __future__ import annotations

import ctypes
import logging
from ctypes import POINTER, c_char_p, c_float, c_int, c_int64, c_void_p
from pathlib import Path
from typing import Any

from stratos.engine.native.isa import SOURCE_FOLDER, cpu_flags, source_digest, supported_sets
from stratos.engine.native.structures import (
    SHARED_BYTES,
    AttentionStep,
    DeltaStep,
    ForwardPass,
    LinearWeight,
    ModelWeights,
    RoutingOptions,
    SampleRow,
)

_log = logging.getLogger(__name__)
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "stratos_sources": (c_char_p, []),
    "stratos_permit": (c_int, []),
    "stratos_peak": (c_int64, [c_int, c_int64]),
    "stratos_step_bytes": (c_int64, []),
    "stratos_packs_keys": (c_int, [c_int64, c_int64]),
    "stratos_key_unit": (c_int, [c_int]),
    "stratos_scratch_bytes": (c_int64, [c_int64]),
    "stratos_plan": (None, [POINTER(AttentionStep)]),
    "stratos_attention": (None, [POINTER(AttentionStep), c_int64, c_int64, c_void_p, c_void_p, c_void_p]),
    "stratos_rms_norm": (
        None,
        [c_int, c_void_p, c_void_p, c_void_p, c_void_p, c_int64, c_int64, c_float, c_float, c_int],
    ),
    "stratos_gated": (None, [c_int, c_int, c_float, c_void_p, c_void_p, c_int64, c_int64, c_int]),
    "stratos_routing_floats": (c_int64, [POINTER(RoutingOptions)]),
    "stratos_route": (None, [POINTER(RoutingOptions), c_void_p, c_void_p, c_void_p, c_void_p, c_int64, c_int]),
    "stratos_sigmoid": (None, [c_void_p, c_void_p, c_int64]),
    "stratos_pass_bytes": (c_int64, []),
    "stratos_forward": (None, [POINTER(ModelWeights), POINTER(ForwardPass)]),
    "stratos_packed_bytes": (c_int64, [c_int, c_int64, c_int64]),
    "stratos_pack": (None, [c_int, c_void_p, c_void_p, c_int64, c_int64, c_int]),
    "stratos_panel": (c_int64, []),
    "stratos_code_bytes": (c_int64, [c_int64, c_int64, c_int64]),
    "stratos_pack_codes": (None, [c_int64, c_void_p, c_void_p, c_int64, c_int64, c_int]),
    "stratos_k_code_bytes": (c_int64, [c_int64, c_int64, c_int64]),
    "stratos_pack_k_codes": (None, [c_int64, c_void_p, c_void_p, c_int64, c_int64, c_int]),
    "stratos_linear": (None, [c_int, POINTER(LinearWeight), c_void_p, c_void_p, c_int64, c_int, c_int]),
    "stratos_row_bytes": (c_int64, []),
    "stratos_sample_bytes": (c_int64, [c_int64]),
    "stratos_sample": (None, [POINTER(SampleRow), c_int64, c_int64, c_void_p, c_int]),
    "stratos_delta_bytes": (c_int64, []),
    "stratos_delta": (None, [POINTER(DeltaStep)]),
    "stratos_sigmoid_gate": (None, [c_int, c_void_p, c_void_p, c_int64]),
    "stratos_argmax": (None, [c_int, c_void_p, c_void_p, c_void_p, c_int64, c_int64, c_int]),
}


class NativeLibraryUnusable(Exception):
    """There is no library that this process can use; the message says why and what to do."""


class TilesRefused(NativeLibraryUnusable):
    """The processor has tiles, and the system does not let this process use them."""


class NativeLibrary:
    """The functions of one compiled library, as attributes without the prefix.

    Args:
        path: the shared library.
        isa: name of the instruction set that it is built for.

    Raises:
        NativeLibraryUnusable: it cannot be loaded, was built from other sources, or is refused by the system.
    """

    plan: Any
    attention: Any
    rms_norm: Any
    gated: Any
    argmax: Any
    routing_floats: Any
    route: Any
    sigmoid: Any
    packs_keys: Any
    key_unit: Any
    scratch_bytes: Any
    packed_bytes: Any
    pack: Any
    panel: Any
    code_bytes: Any
    pack_codes: Any
    k_code_bytes: Any
    pack_k_codes: Any
    linear: Any
    peak: Any
    sample: Any
    sample_bytes: Any
    forward: Any
    delta: Any
    sigmoid_gate: Any

    def __init__(self, path: Path, isa: str) -> None:
        self.path, self.isa = path, isa
        try:
            library = ctypes.CDLL(str(path))
            for name, (result, arguments) in _SIGNATURES.items():
                function = getattr(library, name)
                function.restype, function.argtypes = result, arguments
                setattr(self, name.removeprefix("stratos_"), function)
        except (OSError, AttributeError) as error:
            raise NativeLibraryUnusable(f"{path.name} cannot be loaded: {error}") from error
        is_current = library.stratos_sources().decode() == source_digest()
        sizes = [
            size() for size in (library.stratos_step_bytes, library.stratos_row_bytes, library.stratos_delta_bytes)
        ]
        expected = [ctypes.sizeof(structure) for structure in (AttentionStep, SampleRow, DeltaStep)]
        if not is_current or [*sizes, library.stratos_pass_bytes()] != [*expected, SHARED_BYTES]:
            raise NativeLibraryUnusable(f"{path.name} was built from other sources")
        if library.stratos_permit():
            raise TilesRefused(f"{path.name} needs tiles, and the system refuses them to this process")


def load_native(folder: Path = SOURCE_FOLDER, name: str = "auto") -> NativeLibrary:
    """Load the fastest library that this process can run, or the one that ``name`` asks for.

    Raises:
        NativeLibraryUnusable: there is none, or not that one.
    """
    candidates = [isa for isa in supported_sets(cpu_flags()) if name in ("auto", isa.name)]
    if not candidates:
        wanted = "none of the instruction sets" if name == "auto" else f"no {name}, the instruction set"
        raise NativeLibraryUnusable(f"this processor has {wanted} that they are written for")
    for isa in candidates:
        if not (folder / isa.file_name).exists():
            continue
        try:
            return NativeLibrary(folder / isa.file_name, isa.name)
        except TilesRefused as refusal:
            if name != "auto":
                raise
            _log.warning("computing without tiles, which is slower: %s", refusal)
    all_builds = "" if name == "auto" else " --all"
    raise NativeLibraryUnusable(f"they are not built; run: python -m stratos.engine.native.build{all_builds}")
