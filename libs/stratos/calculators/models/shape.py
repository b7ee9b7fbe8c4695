"""Shape of a model: what its memory and its arithmetic follow from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Products:
    """Weights of linear layers, by how many inputs a layer has: a scheme codes those that its groups fill.

    Args:
        by_inputs: inputs, and elements of all layers that have so many.
        only_scheme: the one that changes them; "" is any.
    """

    by_inputs: tuple[tuple[int, int], ...] = ()
    only_scheme: str = ""

    @property
    def parameters(self) -> int:
        return sum(count for _, count in self.by_inputs)

    def times(self, number: int) -> Products:
        """Weights of so many of them, all alike."""
        return Products(tuple((inputs, number * count) for inputs, count in self.by_inputs), self.only_scheme)


def products_of(layers: Iterable[tuple[int, int]], only_scheme: str = "") -> Products:
    """Weights of layers, by outputs and inputs of each."""
    found: dict[int, int] = {}
    for outputs, inputs in layers:
        found[inputs] = found.get(inputs, 0) + outputs * inputs
    return Products(tuple(found.items()), only_scheme)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A decoder-only transformer, counted in elements; ``config_json`` makes it."""

    name: str
    source: str
    """Where its ``config.json`` comes from."""
    num_layers: int
    hidden_size: int
    vocab_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    latent_size: int
    """Elements that a token and layer keep with latent attention (MLA), in place of keys and values; 0 without."""
    max_model_len: int
    windows: tuple[int | None, ...]
    """Per layer that keeps KV, how many tokens a token sees; ``None`` for all before it."""
    is_tied: bool
    """The output layer is the table of embeddings."""
    linear: Products
    """Weights of all layers, without routed experts."""
    expert: Products
    """Weights of one routed expert in each layer that has them."""
    num_experts: int
    num_chosen: int
    """Routed experts of a token."""
    small_parameters: int
    """Norms, biases, routers: kept in the compute type by every scheme."""
    widest: int
    """Features of the widest activation of a token."""
    attention_size: int
    """Features of all query heads as attention multiplies them: 4 operations each, for a token, a position, a layer."""
    adapter_features: int
    """Features in and out of every projection that takes a LoRA adapter; 0 where none is served."""
    kept_products: int = 0
    """Elements of ``small_parameters`` that a token is multiplied with: latent attention's keys and values."""
    state_layers: int = 0
    """Layers, among ``num_layers``, that keep a recurrent state of a sequence in place of KV."""
    state_size: int = 0
    """Numbers of that state in one layer, in float32."""
    num_rotations: int = 1
    """Tables of cosines and sines: one for each way in which layers rotate."""

    @property
    def kv_layers(self) -> int:
        """Layers that keep KV."""
        return self.num_layers - self.state_layers

    @property
    def table_parameters(self) -> int:
        return self.vocab_size * self.hidden_size

    @property
    def experts(self) -> Products:
        """Weights of all routed experts."""
        return self.expert.times(self.num_experts)

    @property
    def kept_parameters(self) -> int:
        """Tables and small ones: what no scheme changes."""
        return self.small_parameters + self.table_parameters * (1 if self.is_tied else 2)

    @property
    def parameters(self) -> int:
        return self.linear.parameters + self.experts.parameters + self.kept_parameters

    @property
    def active_parameters(self) -> int:
        """Elements that one token is multiplied with, the output layer included."""
        products = self.linear.parameters + self.num_chosen * self.expert.parameters
        return products + self.kept_products + self.table_parameters

    def seen(self, num_tokens: int) -> int:
        """Tokens that the last of ``num_tokens`` sees, added up over the layers."""
        return sum(num_tokens if window is None else min(num_tokens, window) for window in self.windows)

    @property
    def max_window(self) -> int:
        """Tokens that any layer sees at most; 0 where some layer sees all."""
        sizes = [window for window in self.windows if window is not None]
        return max(sizes) if len(sizes) == len(self.windows) else 0
