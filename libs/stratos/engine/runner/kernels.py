"""Chooses the kernels of a runner from its configuration, its device and what this machine can load."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from stratos.common.errors import InvalidCheckpoint
from stratos.core.kv import KvGeometry
from stratos.engine.attention.backend import AttentionBackend
from stratos.engine.attention.grouped import GroupedAttention
from stratos.engine.attention.native import MAX_HEAD_DIM, NativePagedAttention, key_unit
from stratos.engine.attention.paged import TorchPagedAttention
from stratos.engine.attention.scores import PLAIN_SCORES, ScoreOptions
from stratos.engine.attention.tiled import TorchTiledAttention
from stratos.engine.checkpoint.families.options import DecoderOptions
from stratos.engine.checkpoint.model_config import DecoderConfig
from stratos.engine.contract.kv_groups import KvGroups
from stratos.engine.layers.exact_ops import ExactTorchOps
from stratos.engine.layers.linear import LinearFactory
from stratos.engine.layers.native_ops import NativeOps
from stratos.engine.layers.ops import LayerOps, TorchOps
from stratos.engine.memory.grouped_pages import GroupedPages, choose_groups
from stratos.engine.memory.kv_codes import KV_CODES, KvCodes
from stratos.engine.memory.kv_pages import KvPages
from stratos.engine.memory.state_slots import FLOAT_BYTES, StateSlots
from stratos.engine.models.delta import DeltaKernel
from stratos.engine.native.library import NativeLibrary, NativeLibraryUnusable, load_native
from stratos.engine.sampling.native_sampler import NativeSampler
from stratos.engine.settings import RunnerConfig, SchedulerConfig
from stratos.engine.sizing.state_support import check_states

PDL_CAPABILITY, FP8_CAPABILITY = (9, 0), (8, 9)
"""Compute capabilities from which on a GPU has programmatic dependent launch (Hopper), and e4m3 (Ada)."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Kernels:
    """Kernels that compute the layers of one model."""

    ops: LayerOps
    library: NativeLibrary | None
    """The C++ kernels, where they are used."""
    is_exact: bool
    is_triton: bool = False
    """Attention by Triton."""
    splits_kv: bool = True
    """Triton's attention: long contexts are split over several programs."""
    balances_kv: bool = True
    """Triton's attention: each context is split by its own length."""
    has_fp8_kv: bool = False
    """Triton's attention: pages are in fp8."""
    kv_codes: KvCodes | None = None
    """On a CPU: what pages hold in place of numbers."""
    has_pdl: bool = False
    """Triton's kernels of a layer are launched while the one before still runs."""
    packs_keys: bool = True
    """The C++ kernels: K lies in the pages as they read it."""
    has_native_sinks: bool = True
    """The C++ kernels: attention sinks by them, too."""

    def check_states(
        self, model: DecoderConfig, config: RunnerConfig, scheduler: SchedulerConfig | None, device: torch.device
    ) -> None:
        """Raise ``InvalidCheckpoint`` where a model has layers with a state that cannot be had so."""
        has_kernels = isinstance(self.ops, NativeOps)
        check_states(model, config, scheduler, is_gpu=device.type != "cpu", has_kernels=has_kernels)

    def states(self, geometry: KvGeometry, num_slots: int) -> tuple[StateSlots | None, tuple[DeltaKernel, ...]]:
        """Memory of recurrent states, and facts of the kernels that write it, where a model has some."""
        if not geometry.num_state_layers:
            return None, ()
        assert isinstance(self.ops, NativeOps), "checked before the model is loaded"
        return StateSlots(geometry, num_slots), (DeltaKernel(self.ops.library),)

    def linear(self, config: RunnerConfig, device: torch.device, dtype: torch.dtype) -> LinearFactory:
        """Factory of the linear layers."""
        factory = self._linear(config, device, dtype)
        if self.is_triton:
            from stratos.engine.layers.triton_linear import TritonCodesFactory

            factory.code_products = TritonCodesFactory(device, dtype, is_exact=self.is_exact)
        return factory

    def _linear(self, config: RunnerConfig, device: torch.device, dtype: torch.dtype) -> LinearFactory:
        if self.is_triton and self.is_exact:
            from stratos.engine.layers.triton_linear import TritonLinearFactory

            return TritonLinearFactory(device, dtype)
        if self.is_triton and config.kernels.gemm_choice:
            from stratos.engine.layers.product_choice import MeasuredLinearFactory

            return MeasuredLinearFactory(device, dtype, has_pdl=self.has_pdl)
        return LinearFactory(
            device,
            dtype,
            # Triton's kernels read weights where they lie, as rows
            enable_prepacked_gemm=config.kernels.prepacked_gemm and not self.is_triton,
            exact=self.is_exact,
            library=self.library if config.kernels.native_gemm else None,
            integer_tiles=config.kernels.integer_tiles,
            grouped_codes=config.kernels.grouped_codes,
            panel_runs=config.kernels.panel_runs,
        )

    def attending(self, head_dim: int) -> NativeLibrary | None:
        """The C++ kernels, where attention is computed by them."""
        return None if self.is_triton or head_dim > MAX_HEAD_DIM else self.library

    def key_unit(self, geometry: KvGeometry, dtype: torch.dtype) -> int:
        """``KvPages.key_unit`` for the attention backend, which computes in ``dtype``."""
        library = self.attending(geometry.head_dim) if geometry.num_sides == 2 else None
        return 0 if library is None or not self.packs_keys else key_unit(library, geometry, dtype)

    def sampler(self, config: RunnerConfig, eos_token_ids: Sequence[int], vocab_size: int) -> NativeSampler | None:
        """The sampler by the C++ kernels, where they are used; arguments as for it."""
        if self.library is None or not config.kernels.native_sampler:
            return None
        return NativeSampler(self.library, eos_token_ids, vocab_size, self.ops)

    def attention(
        self,
        pages: KvPages,
        num_heads: int,
        windows: Sequence[int | None],
        dtype: torch.dtype,
        kv_scales: Tensor | None = None,
        scores: ScoreOptions = PLAIN_SCORES,
    ) -> AttentionBackend:
        """The attention backend over a pool, computing in ``dtype``; ``kv_scales`` for a GPU's pages in fp8.

        Raises:
            InvalidCheckpoint: Triton's kernels have no capped scores and no sinks of heads.
        """
        if isinstance(pages, GroupedPages):
            make = partial(self._on_cpu, pages, num_heads, dtype=dtype)
            return GroupedAttention(pages.groups, pages.geometry.block_size, windows, scores, make)
        if self.is_triton and not scores.is_plain:
            raise InvalidCheckpoint("this model caps its scores or has sinks: it runs on a CPU, not yet on a GPU")
        if self.is_triton:
            from stratos.engine.attention.triton_paged import TritonPagedAttention

            return TritonPagedAttention(
                pages,
                num_heads,
                windows,
                dtype=dtype,
                kv_scales=kv_scales,
                is_exact=self.is_exact,
                splits_kv=self.splits_kv,
                balances_kv=self.balances_kv,
                has_pdl=self.has_pdl,
                scores=scores,
            )
        return self._on_cpu(pages, num_heads, windows, scores, dtype)

    def _on_cpu(
        self,
        pages: KvPages,
        num_heads: int,
        windows: Sequence[int | None],
        scores: ScoreOptions,
        dtype: torch.dtype,
    ) -> AttentionBackend:
        library = self.attending(pages.geometry.head_dim)
        if library is not None:
            return NativePagedAttention(library, pages, num_heads, windows, dtype, scores)
        kernel = TorchTiledAttention if self.is_exact or pages.geometry.num_sides == 1 else TorchPagedAttention
        return kernel(pages, num_heads, windows, dtype, scores)


def choose_pages(
    windows: tuple[int | None, ...], config: RunnerConfig, scheduler: SchedulerConfig | None, device: torch.device
) -> tuple[KvGroups | None, Callable[..., KvPages]]:
    """Pages of a block, where they are several, and what makes the pool; arguments as of ``choose_groups``."""
    groups = choose_groups(windows, config, scheduler, device)
    return groups, KvPages if groups is None else partial(GroupedPages, groups)


def geometry_of(model: DecoderConfig, config: RunnerConfig, dtype: torch.dtype, scale_bytes: int) -> KvGeometry:
    """Shape of the KV, and of the states, of a model on this runner, whose pages have elements of ``dtype``.

    Raises:
        InvalidCheckpoint: the model has latent attention, which these settings do not go with.
    """
    if model.latent and config.kernels.triton_kernels:
        raise InvalidCheckpoint("this model has latent attention (MLA): it runs on a CPU, not yet on a GPU")
    if model.latent and config.kv_dtype != "auto":
        raise InvalidCheckpoint(
            f"kv_dtype {config.kv_dtype} is not supported with latent attention (MLA): set it to auto"
        )
    return KvGeometry(
        num_layers=len(model.kv_layers),
        num_state_layers=len(model.delta.layers) if model.delta else 0,
        state_layer_bytes=model.delta.state_size * FLOAT_BYTES if model.delta else 0,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        block_size=config.block_size,
        element_bytes=dtype.itemsize,
        scale_bytes=scale_bytes,
        num_sides=model.num_kv_sides,
    )


def score_options(options: DecoderOptions, sinks: Tensor | None) -> ScoreOptions:
    """Options of a model's scores; ``sinks`` as its checkpoint holds them."""
    return ScoreOptions(options.attention_scale, options.attention_cap, sinks)


def choose_kernels(config: RunnerConfig, device: torch.device, dtype: torch.dtype) -> Kernels:
    """Take Triton's kernels where they are asked for; else load the C++ ones where they are wanted and usable.

    Raises:
        InvalidCheckpoint: Triton is asked for and not installed, KV in int8 with it, or a build of the C++ kernels that
            this machine cannot run.
    """
    switches = config.kernels
    if switches.triton_kernels:
        if config.kv_dtype == "int8":
            raise InvalidCheckpoint("kv_dtype int8 is for CPUs: set it to fp8 or auto on a GPU")
        if config.kv_dtype == "fp8" and _is_older(device, FP8_CAPABILITY):
            raise InvalidCheckpoint("kv_dtype fp8 needs a GPU of compute capability 8.9 or later: set kv_dtype to auto")
        has_pdl = switches.dependent_launch and device.type == "cuda" and not _is_older(device, PDL_CAPABILITY)
        ops: LayerOps = _triton_ops(has_pdl) if switches.fused_ops else TorchOps()
        return Kernels(
            ops,
            None,
            switches.exact_kernels,
            is_triton=True,
            splits_kv=switches.split_kv,
            balances_kv=switches.balanced_kv,
            has_fp8_kv=config.kv_dtype == "fp8",
            has_pdl=has_pdl,
        )
    library = _library(config.native_isa) if switches.native_kernels and device.type == "cpu" else None
    is_exact = config.exact and device.type == "cpu"
    ops = ExactTorchOps() if is_exact else TorchOps()
    if library is not None and switches.fused_ops:
        ops = NativeOps(library, dtype)
    return Kernels(
        ops,
        library,
        is_exact,
        packs_keys=switches.packed_keys,
        has_native_sinks=switches.native_sinks,
        kv_codes=KV_CODES.get(config.kv_dtype),
    )


def _is_older(device: torch.device, capability: tuple[int, int]) -> bool:
    """A GPU that does not have this compute capability yet."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) < capability


def _triton_ops(has_pdl: bool) -> LayerOps:
    try:
        from stratos.engine.layers.triton_ops import TritonOps
    except ImportError as error:
        raise InvalidCheckpoint("a GPU needs Triton: install the extra stratosserve[gpu]") from error
    return TritonOps(has_pdl=has_pdl)


def _library(name: str) -> NativeLibrary | None:
    try:
        return load_native(name=name)
    except NativeLibraryUnusable as error:
        if name != "auto":
            raise InvalidCheckpoint(f"native_isa {name} cannot be used: {error}") from error
        _log.warning("native kernels are off, computing in pure torch, which is slower: %s", error)
        return None
