"""StreamingLLM as an option of a model: what it changes before the model is loaded, and what it refuses.

With ``attention_window`` every layer sees a window, and with ``attention_sinks`` the first tokens of the sequence, too
(``attention.sinks`` has the rule).  Sequences may then be longer than the context the model was trained with, up to
``max_stream_len``, in a bounded number of KV blocks (``kv_cache.window``).  The result differs from the model's own
attention as soon as a sequence is longer than the window, and is not exact in the sense of exact mode; its KV is of no
use to another configuration, and its identity says so.
"""

from __future__ import annotations

import logging
from dataclasses import replace

import torch
from torch import Tensor

from stratos.common.errors import InvalidCheckpoint
from stratos.core.kv import KvGeometry
from stratos.engine.attention.backend import AttentionBackend
from stratos.engine.attention.native_sinks import NativeSinkAttention
from stratos.engine.attention.scores import PLAIN_SCORES, ScoreOptions
from stratos.engine.attention.sinks import CachePlaces, SinkPagedAttention, SinkTerms
from stratos.engine.checkpoint.model_config import DecoderConfig
from stratos.engine.layers.rotary import StreamingRotary
from stratos.engine.memory.kv_pages import KvPages
from stratos.engine.native.library import NativeLibrary
from stratos.engine.runner.kernels import Kernels
from stratos.engine.settings import RunnerConfig

_log = logging.getLogger(__name__)


class Streaming:
    """The option, checked against a model.

    Args:
        config: with ``attention_window`` set.
        model: as its checkpoint says.
        device: where it runs.

    Raises:
        InvalidCheckpoint: it cannot be combined with this model or with these settings.
    """

    def __init__(self, config: RunnerConfig, model: DecoderConfig, device: torch.device) -> None:
        _check(config, model)
        self.num_sinks, self.window = config.streaming.attention_sinks, config.streaming.attention_window
        longest = max(config.streaming.max_stream_len, self._held)
        self.rotary = StreamingRotary(model.rope, model.head_dim, device)
        self.model = replace(model, windows=(self.window,) * model.num_layers, max_model_len=longest)
        """The model as it runs."""

    @property
    def _held(self) -> int:
        return self.num_sinks + self.window

    @property
    def variant(self) -> str:
        """Part of the identity of KV: sinks and window change what a block's KV is computed from."""
        return f"{self.model.rope_variant}/streaming:{self.num_sinks}:{self.window}"

    def attention(
        self,
        kernels: Kernels,
        pages: KvPages,
        dtype: torch.dtype,
        kv_scales: Tensor | None,
        scores: ScoreOptions = PLAIN_SCORES,
    ) -> AttentionBackend:
        """The backend: without sinks it is a sliding window, which every backend has."""
        num_heads, library = self.model.num_heads, self._sink_library(kernels)
        if not self.num_sinks:
            return kernels.attention(pages, num_heads, self.model.windows, dtype, kv_scales, scores)
        places = CachePlaces(self.num_sinks, self.window, self.rotary)
        terms = SinkTerms(pages, num_heads, places, dtype, scores)
        if library is not None:
            return NativeSinkAttention(library, terms)
        backend = SinkPagedAttention(terms)
        _log.warning("attention sinks: attention runs on %s, not on the C++ kernels", backend.name)
        return backend

    def key_unit(self, kernels: Kernels, geometry: KvGeometry, dtype: torch.dtype) -> int:
        """``KvPages.key_unit`` for the backend."""
        is_torch = self.num_sinks > 0 and self._sink_library(kernels) is None
        return 0 if is_torch else kernels.key_unit(geometry, dtype)

    def _sink_library(self, kernels: Kernels) -> NativeLibrary | None:
        return kernels.attending(self.model.head_dim) if kernels.has_native_sinks else None


def streaming(config: RunnerConfig, model: DecoderConfig, device: torch.device) -> Streaming | None:
    """The option, where the settings ask for it.

    Raises:
        InvalidCheckpoint: it cannot be combined with this model or these settings, or there are sinks without a window.
    """
    if not config.streaming.attention_window:
        if config.streaming.attention_sinks:
            raise InvalidCheckpoint("attention_sinks needs attention_window: the tokens seen besides the sinks")
        return None
    return Streaming(config, model, device)


def _check(config: RunnerConfig, model: DecoderConfig) -> None:
    held = config.streaming.attention_sinks + config.streaming.attention_window
    if any(window is not None for window in model.windows):
        raise InvalidCheckpoint("attention_window cannot be set for a model that has sliding windows of its own")
    if model.latent:
        raise InvalidCheckpoint("attention_window cannot be set for a model with latent attention (MLA)")
    if len(set(model.ropes)) > 1 or not model.options.has_plain_attention:
        raise InvalidCheckpoint("attention_window cannot be set for a model whose layers rotate unlike or have sinks")
    if not model.has_lm_head:
        raise InvalidCheckpoint("attention_window cannot be set for a model that only embeds")
    if held > model.max_model_len:
        raise InvalidCheckpoint(
            f"attention_sinks + attention_window is {held}, more than the model's context of {model.max_model_len}"
        )
    if config.kernels.triton_kernels and config.streaming.attention_sinks:
        raise InvalidCheckpoint("attention_sinks has no Triton kernels: run the torch runner on this device")
