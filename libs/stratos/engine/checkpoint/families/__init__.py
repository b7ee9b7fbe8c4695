"""Families of models as tables of options: one entry per architecture.

Read in this order: ``family``, ``llama``, ``gemma``, ``phi``, ``olmo``, ``glm``, ``gpt_oss``,
``latent``, ``deepseek``, ``delta``, ``qwen3_5``.
"""

from __future__ import annotations

from stratos.engine.checkpoint.families.deepseek import DEEPSEEK
from stratos.engine.checkpoint.families.family import Family
from stratos.engine.checkpoint.families.gemma import GEMMA
from stratos.engine.checkpoint.families.glm import GLM
from stratos.engine.checkpoint.families.gpt_oss import GPT_OSS
from stratos.engine.checkpoint.families.llama import LLAMA
from stratos.engine.checkpoint.families.olmo import OLMO
from stratos.engine.checkpoint.families.phi import PHI
from stratos.engine.checkpoint.families.qwen3_5 import QWEN3_5

FAMILIES: dict[str, Family] = {**LLAMA, **GEMMA, **PHI, **OLMO, **GLM, **GPT_OSS, **DEEPSEEK, **QWEN3_5}
BODIES: dict[str, str] = {name.replace("ForCausalLM", "Model"): name for name in FAMILIES}
"""Architecture without an output layer -> the one with it; embedding models are saved as the former."""
TEXT_PARTS: dict[str, str] = {
    "Gemma3ForConditionalGeneration": "Gemma3ForCausalLM",
    "Mistral3ForConditionalGeneration": "MistralForCausalLM",
    "Qwen3_5ForConditionalGeneration": "Qwen3_5ForCausalLM",
}
"""Architecture that sees images as well -> that of its text part, whose fields are its ``text_config``."""
MODEL_TYPES: dict[str, str] = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "qwen2_moe": "Qwen2MoeForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
    "granite": "GraniteForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "olmo2": "Olmo2ForCausalLM",
    "olmo3": "Olmo3ForCausalLM",
    "glm": "GlmForCausalLM",
    "glm4": "Glm4ForCausalLM",
    "glm4_moe": "Glm4MoeForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
    "deepseek_v2": "DeepseekV2ForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "qwen3_5_text": "Qwen3_5ForCausalLM",
}
"""``model_type`` -> architecture, for a ``config.json`` without ``architectures``."""
