"""Which scheme the weights of a model have when it runs: the checkpoint's, or the one asked for at load."""

from __future__ import annotations

from stratos.common.errors import InvalidCheckpoint
from stratos.core.files.gguf.decoder_fields import METHOD
from stratos.engine.checkpoint.model_config import DecoderConfig
from stratos.engine.checkpoint.weight_schemes import LinearScheme, label_at_load
from stratos.engine.revisions import revised


def chosen_scheme(quantization: str, model: DecoderConfig) -> str:
    """Label of the scheme that linear layers have, "" for floats.

    Args:
        quantization: the setting.
        model: as its checkpoint says.

    Raises:
        InvalidCheckpoint: the checkpoint is quantised, and another scheme is asked for.
    """
    stored = model.quantisation
    if quantization == "auto":
        coded = LinearScheme.MXFP4.label if model.has_coded_experts else ""
        return coded if stored is None else stored.label
    if stored is not None:
        raise InvalidCheckpoint(
            f"quantization {quantization} is for float weights; the checkpoint stores {stored.label}: set it to auto"
        )
    return label_at_load(quantization)


def is_widened_by_switch(quantization: str, model: DecoderConfig) -> bool:
    """Whether weights are floats with the switch ``kept_codes`` off: blocks of GGUF files and coded experts alone."""
    if model.quantisation is None:
        return quantization == "auto" and model.has_coded_experts
    return model.quantisation.method == METHOD


def scheme_parts(label: str, code_family: str | None) -> tuple[str, ...]:
    """Parts of the numerics id that name it, and a GPU's kernels; ``code_family`` as of ``LinearFactory``."""
    if not label:
        return ()
    if code_family == "triton":
        return (revised("triton-quantised-products", f"triton-{label}"),)
    return (revised("native-gguf-products" if label.startswith(METHOD) else "native-quantised-products", label),)
