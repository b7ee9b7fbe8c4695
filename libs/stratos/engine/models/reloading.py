"""A decoder that gives its weights back to the system and reads them again, from files that must be the same."""

from __future__ import annotations

from collections.abc import Callable

from stratos.common.errors import InvalidCheckpoint
from stratos.core.files.handed_digest import state_of
from stratos.core.files.model_files import CONFIG_NAME, ModelFiles
from stratos.engine.checkpoint.loader import CheckpointReader
from stratos.engine.layers.linear import LinearFactory
from stratos.engine.models.decoder import Decoder as Decoder

CHANGED = "the model's files have changed since they were loaded; a worker that starts serves what is there now"


class ReloadableWeights:
    """Weights of one loaded decoder on a CPU.

    Args:
        decoder: whose weights they are.
        files: that they were read from.
        open_reader: reads the files again.
        linear: made the decoder's layers; its memory is theirs.
    """

    def __init__(
        self,
        decoder: Decoder,
        files: ModelFiles,
        open_reader: Callable[[], CheckpointReader],
        linear: LinearFactory,
    ) -> None:
        self._decoder, self._open_reader, self._linear = decoder, open_reader, linear
        self._paths = (files.path / CONFIG_NAME, *files.weight_paths)
        self._state = state_of(self._paths)

    def give_back(self) -> int:
        """Free the memory of the weights; returns how many bytes. The files stay in the system's page cache."""
        return self._linear.memory.give_back()

    def read_again(self) -> None:
        """Fill the memory with the same bytes.

        Raises:
            InvalidCheckpoint: the files are others, or cannot be read.
        """
        self._check_files()
        with self._linear.memory.filling():
            self._decoder.refill(self._open_reader(), self._linear)
        self._check_files()  # a write during the reading

    def _check_files(self) -> None:
        try:
            is_same = state_of(self._paths) == self._state
        except OSError as error:
            raise InvalidCheckpoint(f"{error.filename} cannot be read: {error.strerror}") from error
        if not is_same:
            raise InvalidCheckpoint(CHANGED)
