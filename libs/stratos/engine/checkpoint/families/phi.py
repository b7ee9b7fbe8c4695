"""Phi-3, Phi-3.5-mini, Phi-4 and Phi-4-mini: fused projections, and a rotation of a share of each head."""

from __future__ import annotations

from stratos.engine.checkpoint.families.family import Family

PHI: dict[str, Family] = {
    "Phi3ForCausalLM": Family(windows="all", is_fused=True, defaults={"rms_norm_eps": 1e-5}),
}
"""Architecture -> its options."""
