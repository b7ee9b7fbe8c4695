"""Steps that one request is inside of, left in the reverse order; each is left, whatever the others raise.

``contextlib.AsyncExitStack`` does this for contexts of any kind, at several times the calls for each of them.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from stratos_gateway.answering.contract import Around, AtEnd


class Entered:
    """Belongs to the task of one request."""

    __slots__ = ("_steps",)

    def __init__(self) -> None:
        self._steps: list[Around] = []

    async def enter(self, step: AbstractAsyncContextManager[None]) -> None:
        """Go into a step; raises what it refuses with."""
        await step.__aenter__()
        self._steps.append(step)

    def add(self, step: AtEnd) -> None:
        """Note a step that only settles, as most do: nothing is waited for."""
        self._steps.append(step)

    async def leave(self, error: BaseException | None) -> None:
        """Leave all of them.

        Args:
            error: why; ``None`` where all went well. A step may suppress it, or raise another one in its place.
        """
        while self._steps:
            step = self._steps.pop()
            try:
                if isinstance(step, AtEnd):
                    step.settle()
                elif error is None:
                    await step.__aexit__(None, None, None)
                elif await step.__aexit__(type(error), error, error.__traceback__):
                    error = None
            except BaseException as another:
                error = another
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback has this frame
