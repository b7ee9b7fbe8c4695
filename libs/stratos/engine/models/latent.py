"""Products around latent attention (MLA), which leave to the attention backend one KV head that is K and V at once.

A head of q and k has the places that a backend rotates by (feature i with i + half):

    [first of each rotated pair, first half of the latent vector, second of each pair, second half of the latent vector]

What a head's key weights would make of every cached vector is made of the head's query instead, once, and its value
weights are applied to what attention gives.  Every product is a ``Linear``, so a row's bits depend on the row alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from stratos.engine.checkpoint.families.latent import LatentConfig
from stratos.engine.checkpoint.layer_weights import LatentParts, LinearWeights
from stratos.engine.layers.linear import Linear, LinearFactory
from stratos.engine.layers.ops import LayerOps
from stratos.engine.layers.rotary import RopeRows, RotaryTable

NORM_EPS = 1e-6
"""Of the norms within latent attention, whatever ``rms_norm_eps`` says."""
Ready = Callable[[LinearWeights], Linear]


class LatentQkv:
    """Hidden states to [tokens, (heads + 1) * size]: the queries of all heads, then the key, neither rotated.

    Args:
        latent: sizes.
        weights: of the layer.
        ready: makes a product of weights.
        linear: makes those of each head.
        ops: the norms.
    """

    def __init__(
        self, latent: LatentConfig, weights: LatentParts, ready: Ready, linear: LinearFactory, ops: LayerOps
    ) -> None:
        self._latent, self._ops = latent, ops
        self._query_down = None if weights.query_down is None else ready(weights.query_down)
        self._query_norm, self._norm = weights.query_norm, weights.norm
        self._query, self._down = ready(weights.query), ready(weights.down)
        self._keys = [linear(up[: latent.plain_dim].T.contiguous()) for up in weights.up]

    def __call__(self, x: Tensor) -> Tensor:
        latent, down = self._latent, self._down(x)
        out = x.new_empty(x.shape[0], latent.num_heads + 1, latent.size)
        vector = self._ops.rms_norm(down[:, : latent.rank].contiguous(), self._norm, NORM_EPS)
        self._place(out[:, -1], down[:, latent.rank :], vector)
        heads = self._queries(x).view(x.shape[0], latent.num_heads, -1)
        met = _by_head(self._keys, heads[..., : latent.plain_dim])
        self._place(out[:, :-1], heads[..., latent.plain_dim :], met)
        return out.flatten(1)

    def _queries(self, x: Tensor) -> Tensor:
        if self._query_down is not None:
            assert self._query_norm is not None
            x = self._ops.rms_norm(self._query_down(x), self._query_norm, NORM_EPS)
        return self._query(x)

    def _place(self, out: Tensor, rotated: Tensor, vector: Tensor) -> None:
        """Fill heads ``out`` [..., size] from their rotated part, as the checkpoint has it, and latent features."""
        pairs = rotated.chunk(2, -1)
        if self._latent.is_interleaved:
            pairs = (rotated[..., 0::2], rotated[..., 1::2])
        sides = zip(out.chunk(2, -1), pairs, vector.chunk(2, -1), strict=True)
        for half, of_pairs, of_vector in sides:
            num_pairs = of_pairs.shape[-1]
            half[..., :num_pairs], half[..., num_pairs:] = of_pairs, of_vector


class LatentOutput:
    """Results of attention [tokens, heads * size] to hidden states.

    Args:
        latent: sizes.
        weights: of the layer.
        output: the output projection.
        linear: makes the products of each head.
    """

    def __init__(self, latent: LatentConfig, weights: LatentParts, output: Linear, linear: LinearFactory) -> None:
        self._latent, self._output = latent, output
        self._values = [linear(up[latent.plain_dim :].contiguous()) for up in weights.up]

    def __call__(self, x: Tensor) -> Tensor:
        halves = x.view(x.shape[0], self._latent.num_heads, self._latent.size).chunk(2, -1)
        vectors = torch.cat([half[..., self._latent.rope_dim // 2 :] for half in halves], -1)
        return self._output(_by_head(self._values, vectors).flatten(1))


def _by_head(products: Sequence[Linear], x: Tensor) -> Tensor:
    """Each head's own product of [tokens, heads, features]."""
    return torch.stack([linear(x[:, head].contiguous()) for head, linear in enumerate(products)], 1)


class LatentRotary:
    """Factors of the rotated features, and of those that are not: tables hold the former alone.

    Args:
        table: of the rotated ones.
        latent: sizes.
    """

    is_invariant_by_design = True
    libraries = ()

    def __init__(self, table: RotaryTable, latent: LatentConfig) -> None:
        self.name, self._table, self._latent = table.name, table, latent

    def rows(self, positions: Tensor) -> RopeRows:
        """Factors of tokens, see ``RotaryTable.rows``."""
        narrow = self._table.rows(positions)
        cos = narrow.cos.new_ones(len(positions), self._latent.size)
        sin = torch.zeros_like(cos)
        for wide, rotated in ((cos, narrow.cos), (sin, narrow.sin)):
            for half, of_pairs in zip(wide.chunk(2, -1), rotated.chunk(2, -1), strict=True):
                half[:, : of_pairs.shape[1]] = of_pairs
        return RopeRows(cos, sin)
