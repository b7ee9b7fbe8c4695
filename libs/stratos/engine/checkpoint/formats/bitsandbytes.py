"""bitsandbytes: ``quantization_config`` of ``config.json``, for NF4 or for LLM.int8."""

from __future__ import annotations

from stratos.common.errors import InvalidCheckpoint
from stratos.engine.checkpoint.fields import Fields, flag, shown
from stratos.engine.checkpoint.formats.stored_scheme import StoredScheme
from stratos.engine.checkpoint.weight_schemes import NF4_GROUP, OUTLIER, LinearScheme


def bitsandbytes_scheme(stated: Fields) -> StoredScheme:
    """How a ``quantization_config`` of bitsandbytes stores its layers.

    Raises:
        InvalidCheckpoint: a type, or a threshold, that is not implemented.
    """
    in_8_bits, in_4_bits = flag(stated, "load_in_8bit", False), flag(stated, "load_in_4bit", False)
    if in_8_bits == in_4_bits:
        stated_as = "both load_in_4bit and load_in_8bit" if in_8_bits else "neither load_in_4bit nor load_in_8bit"
        raise InvalidCheckpoint(f"config.json: bitsandbytes with {stated_as}")
    if in_8_bits:
        threshold = stated.get("llm_int8_threshold", OUTLIER)
        if threshold != OUTLIER or flag(stated, "llm_int8_has_fp16_weight", False):
            raise InvalidCheckpoint(
                f"config.json: bitsandbytes with llm_int8_threshold {shown(threshold)} or weights in float16 is not "
                f"supported; supported: {OUTLIER}"
            )
        return StoredScheme(scheme=LinearScheme.LLM_INT8, packing="plain", group=0, scale_name="SCB")
    kind = stated.get("bnb_4bit_quant_type", "fp4")  # the library's own default
    if kind != "nf4":
        raise InvalidCheckpoint(f"config.json: bitsandbytes of type {shown(kind)} is not supported; supported: nf4")
    return StoredScheme(scheme=LinearScheme.NF4, packing="bitsandbytes-nf4", group=NF4_GROUP)
