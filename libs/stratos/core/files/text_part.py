"""The fields of a ``config.json`` that describe the text model, where the architecture sees images as well."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TEXT_DEFAULTS: dict[str, dict[str, int]] = {
    "gemma3_text": {"vocab_size": 262208, "num_attention_heads": 8, "max_position_embeddings": 131072},
}
"""``model_type`` of a text part -> sizes that ``transformers`` assumes, since published files leave them out."""

WHOLES = ("architectures", "tie_word_embeddings")
"""Fields that hold for the whole model: its class, and whether its output layer is the embedding of its text part."""
GROWTH = "llama_4_scaling_beta"
"""Parameter of a rotation (Ministral 3): queries behind the context of the pre-training grow with their position."""


def context_length(config: Mapping[str, Any], positions: int) -> int:
    """Longest sequence of a model that states so many positions.

    A dynamic rotation serves ``factor`` times as many.  Growth of queries is not implemented, so a model that has it
    ends where that begins.
    """
    stated = config.get("rope_scaling") or config.get("rope_parameters")
    parameters = stated if isinstance(stated, Mapping) else {}
    original = parameters.get("original_max_position_embeddings")
    if parameters.get(GROWTH) and isinstance(original, int) and original > 0:
        return min(positions, original)
    factor = parameters.get("factor")
    is_growing = (parameters.get("rope_type") or parameters.get("type")) == "dynamic"
    if not is_growing or isinstance(factor, bool) or not isinstance(factor, int | float) or not 1 <= factor <= 1024:
        return positions
    return int(positions * factor)


def text_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the text model: those of ``text_config`` before those around it; without one, all as they are.

    Those of ``WHOLES`` stay as the whole has them.
    """
    text = config.get("text_config")
    if not isinstance(text, Mapping):
        return dict(config)
    around = {name: value for name, value in config.items() if name not in ("text_config", "vision_config")}
    own = {name: value for name, value in text.items() if name not in WHOLES or name not in config}
    return {**TEXT_DEFAULTS.get(str(own.get("model_type")), {}), **around, **own}
