"""A channel whose certificate may change while it is open.

gRPC reads a channel's certificate once, when the channel is made.  This one holds a channel per certificate: new calls
go over that of the newest one, calls that are open end on the channel that they began on, which is closed after the
last of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import grpc
import grpc.aio

from stratos.common.background import BackgroundTasks
from stratos.common.tls.files import TlsMaterial


class _Generation:
    """The channel of one certificate."""

    def __init__(self, material: TlsMaterial, inner: grpc.aio.Channel) -> None:
        self.material = material
        self.inner = inner
        self.num_open = 0
        self.methods: dict[_Method, Callable[..., Any]] = {}


class _Method:
    """Method that a stub holds in place of a channel's multi-callable."""

    def __init__(self, channel: RotatingChannel, kind: str, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        self._channel = channel
        self._kind = kind
        self._args = args
        self._options = options

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Begin a call on the channel of the newest certificate."""
        generation = self._channel.newest()
        method = generation.methods.get(self)
        if method is None:
            method = getattr(generation.inner, self._kind)(*self._args, **self._options)
            generation.methods[self] = method
        call = method(*args, **options)
        generation.num_open += 1
        call.add_done_callback(lambda _: self._channel.call_ended(generation))
        return call


class RotatingChannel(grpc.aio.Channel):  # type: ignore[misc]
    """Belongs to the event loop.

    Args:
        material: the newest certificate; the same object as long as there is no other.
        connect: makes a channel with one.
    """

    def __init__(self, material: Callable[[], TlsMaterial], connect: Callable[[TlsMaterial], grpc.aio.Channel]) -> None:
        self._material = material
        self._connect = connect
        self._closing = BackgroundTasks()
        self._older: set[_Generation] = set()
        first = material()
        self._newest = _Generation(first, connect(first))
        self._is_closed = False

    def newest(self) -> _Generation:
        """The channel that new calls take."""
        material = self._material()
        if material is not self._newest.material and not self._is_closed:
            self._older.add(self._newest)
            self._retire(self._newest)
            self._newest = _Generation(material, self._connect(material))
        return self._newest

    def call_ended(self, generation: _Generation) -> None:
        """A call on it is over."""
        generation.num_open -= 1
        if generation is not self._newest:
            self._retire(generation)

    async def close(self, grace: float | None = None) -> None:
        """Close like any channel: calls are cancelled, after ``grace`` seconds where there are any."""
        self._is_closed = True
        for generation in list(self._older):
            await generation.inner.close(grace)
        await self._newest.inner.close(grace)
        await self._closing.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """State of the channel that new calls take."""
        return self.newest().inner.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self.newest().inner.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        await self.newest().inner.channel_ready()

    def unary_unary(self, *args: Any, **options: Any) -> _Method:
        return _Method(self, "unary_unary", args, options)

    def unary_stream(self, *args: Any, **options: Any) -> _Method:
        return _Method(self, "unary_stream", args, options)

    def stream_unary(self, *args: Any, **options: Any) -> _Method:
        return _Method(self, "stream_unary", args, options)

    def stream_stream(self, *args: Any, **options: Any) -> _Method:
        return _Method(self, "stream_stream", args, options)

    def _retire(self, generation: _Generation) -> None:
        if not generation.num_open and generation in self._older and not self._is_closed:
            self._older.discard(generation)
            self._closing.spawn(generation.inner.close(), name="close the channel of an older certificate")
