"""Tiny random models that see images, whose text part is served."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tests.support.reference.tiny_models import BASE, FAMILIES

VISION = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
VISION_TYPES = {"Gemma3": "siglip_vision_model", "Mistral3": "pixtral"}
TEXT_TYPES = {"Gemma3": "gemma3_text", "Mistral3": "mistral"}
"""Prefix of a class that sees images -> ``model_type`` of its parts."""


def save_seeing(path: Path, whole: str, case: str) -> Any:
    """Write a random model that sees images, whose text part is a case of ``FAMILIES``; returns it, float32."""
    import transformers

    text, vision = TEXT_TYPES[whole], {**VISION, "model_type": VISION_TYPES[whole]}
    fields = {**BASE, **FAMILIES[case][1], "model_type": text}
    torch.manual_seed(0)
    config = getattr(transformers, f"{whole}Config")(text_config=fields, vision_config=vision)
    model = getattr(transformers, f"{whole}ForConditionalGeneration")(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn_like(parameter)
            parameter.copy_(parameter + noise * 0.1 if "norm" in name else noise * 0.2)
    model.save_pretrained(path)
    return model
