"""Events of one stream as bytes: most chunks are a piece of text, which goes into a template of its choice.

The template is cut out of an event that the renderer made, so that both have the same form.
"""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from stratos_gateway.http.sse import encode_events
from stratos_gateway.openai.chunks import ChoiceChunk
from stratos_gateway.openai.responses import Renderer

_MARK = "\0"
_MARK_JSON = orjson.dumps(_MARK)


class EventEncoder:
    """Belongs to one stream.

    Args:
        renderer: of its answer.
    """

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self._templates: dict[int, tuple[bytes, bytes]] = {}

    def encode(self, chunks: Sequence[ChoiceChunk]) -> bytes:
        """Events for what is new."""
        return b"".join([self._encode_chunk(chunk) for chunk in chunks])

    def _encode_chunk(self, chunk: ChoiceChunk) -> bytes:
        if not self._renderer.is_text_alone(chunk):
            return encode_events(self._renderer.events([chunk]))
        template = self._templates.get(chunk.index)
        if template is None:
            template = self._templates[chunk.index] = self._cut(chunk.index)
        return b"%b%b%b" % (template[0], orjson.dumps(chunk.text), template[1])

    def _cut(self, index: int) -> tuple[bytes, bytes]:
        """Cut an event of a choice where its text stands."""
        marked = ChoiceChunk(index, _MARK, [], [], None, is_first=False)
        before, _, after = encode_events(self._renderer.events([marked])).rpartition(_MARK_JSON)
        return before, after
