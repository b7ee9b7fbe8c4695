"""Latent attention (MLA): keys and values of all heads come from one vector, which is all that a token keeps.

Per token and layer that are ``rank`` features, normed, and ``rope_dim`` rotated ones that the heads share.  A head's
query meets the latent vector itself: its part that is not rotated is multiplied with the head's key weights first, and
what attention gives with its value weights afterwards.  So attention is that of one KV head whose values are a part of
its keys.
"""

from __future__ import annotations

from dataclasses import dataclass

from stratos.common.errors import InvalidCheckpoint
from stratos.engine.checkpoint.families.family import Family
from stratos.engine.checkpoint.fields import Fields, flag, positive_int, positive_number, shown
from stratos.engine.checkpoint.rope_config import RopeConfig, magnitude, rope_parameters

MAX_HEADS = 256
"""Query heads that share a key, in the kernels of a CPU."""
UP = "kv_b_proj"
"""Keys and values of all heads from the latent vector; floats under any scheme, as the kernels take it apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentConfig:
    """Sizes of latent attention, in features."""

    num_heads: int
    rank: int
    """Features of the latent vector."""
    rope_dim: int
    """Rotated features: of each head's query, and of the key that all heads share."""
    plain_dim: int
    """Features of a head's query and key that are not rotated."""
    value_dim: int
    """Features of a head's value."""
    query_rank: int
    """Features of the vector that all queries come from; 0: they come from the hidden state."""
    is_interleaved: bool
    """Features 2i and 2i + 1 are rotated together, not i and i + half."""
    has_bias: bool
    """Projections from and to the hidden state have biases, but ``q_proj``."""

    @property
    def size(self) -> int:
        """Features that a token keeps in a layer."""
        return self.rank + self.rope_dim

    def shapes(self, hidden: int) -> dict[str, tuple[int, int]]:
        """(out_features, in_features) of the projections of attention."""
        queries = self.num_heads * (self.plain_dim + self.rope_dim)
        shapes = {"q_proj": (queries, hidden)}
        if self.query_rank:
            shapes = {"q_a_proj": (self.query_rank, hidden), "q_b_proj": (queries, self.query_rank)}
        return shapes | {
            "kv_a_proj_with_mqa": (self.size, hidden),
            UP: (self.num_heads * (self.plain_dim + self.value_dim), self.rank),
            "o_proj": (hidden, self.num_heads * self.value_dim),
        }

    def norms(self) -> dict[str, int]:
        """Norms within attention, and their features."""
        return ({"q_a_layernorm": self.query_rank} if self.query_rank else {}) | {"kv_a_layernorm": self.rank}

    def has_bias_of(self, projection: str) -> bool:
        """Whether a projection of attention has a bias."""
        return self.has_bias and projection in ("q_a_proj", "kv_a_proj_with_mqa", "o_proj")

    def scale(self, fields: Fields, rope: RopeConfig) -> float:
        """Factor of scores: a rotation that is stretched may sharpen them (``mscale_all_dim``)."""
        scale = float((self.plain_dim + self.rope_dim) ** -0.5)
        parameters = rope_parameters(fields)
        if rope.kind == "default" or not parameters.get("mscale_all_dim"):
            return scale
        sharper = magnitude(rope.factor, positive_number(parameters, "mscale_all_dim"))
        return scale * sharper * sharper


def parse_latent(fields: Fields, family: Family) -> LatentConfig | None:
    """Sizes of latent attention; ``None`` where the family has another one.

    Raises:
        InvalidCheckpoint: a senseless value, or a field that changes the computation and is not implemented.
    """
    if not family.is_latent:
        return None
    heads = positive_int(fields, "num_attention_heads", maximum=MAX_HEADS)
    ranks = {name: positive_int(fields, name) for name in ("kv_lora_rank", "qk_rope_head_dim")}
    for name, size in ranks.items():
        if size % 2:
            raise InvalidCheckpoint(f"config.json: {name} must be even, not {size}")
    if flag(fields, "mlp_bias", False):
        raise InvalidCheckpoint("config.json: mlp_bias is not supported with latent attention")
    if fields.get("partial_rotary_factor") not in (None, 1, 1.0):
        raise InvalidCheckpoint("config.json: partial_rotary_factor is not supported with latent attention")
    return LatentConfig(
        num_heads=heads,
        rank=ranks["kv_lora_rank"],
        rope_dim=ranks["qk_rope_head_dim"],
        plain_dim=positive_int(fields, "qk_nope_head_dim"),
        value_dim=positive_int(fields, "v_head_dim"),
        query_rank=0 if fields.get("q_lora_rank") is None else positive_int(fields, "q_lora_rank"),
        is_interleaved=flag(fields, "rope_interleave", True),
        has_bias=flag(fields, "attention_bias", False),
    )


def check_fixed(fields: Fields, family: Family) -> None:
    """Refuse a field that has another value than the one that the family computes with.

    Raises:
        InvalidCheckpoint: names the field.
    """
    for name, known in family.fixed.items():
        if fields.get(name, known) not in (known, None):
            raise InvalidCheckpoint(f"config.json: {name} must be {shown(known)}, not {shown(fields[name])}")
