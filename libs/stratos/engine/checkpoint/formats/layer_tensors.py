"""The tensors of one quantised layer: what every reader of a format asks of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from torch import Tensor

from stratos.common.errors import InvalidCheckpoint
from stratos.engine.checkpoint.formats.stored_scheme import StoredScheme
from stratos.engine.checkpoint.quantised_weight import NestedWeight, QuantisedWeight
from stratos.engine.checkpoint.stored_tensors import StoredTensor


class LayerTensors(ABC):
    """The tensors of one layer, checked against its shape when constructed.

    Args:
        layer: name without ``.weight``.
        shape: (outputs, inputs) that ``config.json`` asks for.
        stored: how the layer is stored.
        tensors: of the checkpoint.

    Raises:
        InvalidCheckpoint: a tensor is missing, or its shape or type contradicts the bits and the group.
    """

    names: frozenset[str] = frozenset()
    """Tensors that are the layer's."""

    def __init__(
        self, layer: str, shape: tuple[int, int], stored: StoredScheme, tensors: Mapping[str, StoredTensor]
    ) -> None:
        self.layer, self.shape, self.stored, self.tensors = layer, shape, stored, tensors

    @property
    def scheme(self) -> StoredScheme:
        """Equal for layers that can be one product."""
        return self.stored

    @abstractmethod
    def read(self) -> QuantisedWeight | NestedWeight:
        """The layer's weight.

        Raises:
            InvalidCheckpoint: a scale is no positive number, a zero or an order of inputs is not possible.
        """

    def whole(self, suffix: str) -> Tensor:
        """A tensor of the layer; it lies in the mapped file."""
        return self.tensors[f"{self.layer}.{suffix}"].whole()

    def find(self, suffix: str) -> StoredTensor:
        """A tensor that the layer must have; raises ``InvalidCheckpoint`` where it is missing."""
        name = f"{self.layer}.{suffix}"
        if name not in self.tensors:
            raise InvalidCheckpoint(f"the checkpoint lacks tensor {name}, which quantization_config asks for")
        return self.tensors[name]

    def require(self, suffix: str, shape: tuple[int, ...], types: tuple[str, ...]) -> str:
        """Name of a tensor that the layer must have.

        Raises:
            InvalidCheckpoint: it is missing, or has another shape or type.
        """
        name, found = f"{self.layer}.{suffix}", self.find(suffix)
        if found.shape != shape:
            raise InvalidCheckpoint(
                f"{found.file_name}: tensor {name} has shape {list(found.shape)}, "
                f"its bits and groups ask for {list(shape)}"
            )
        if found.dtype not in types:
            raise InvalidCheckpoint(
                f"{found.file_name}: tensor {name} has type {found.dtype}; supported here: {', '.join(types)}"
            )
        return name

    def optional(self, suffixes: tuple[str, ...]) -> list[str]:
        """Names of those tensors that are there."""
        return [name for suffix in suffixes if (name := f"{self.layer}.{suffix}") in self.tensors]
