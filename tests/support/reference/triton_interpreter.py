"""Runs Triton kernels in its interpreter where there is no GPU; import it before anything that imports Triton.

Triton decides at its first import whether kernels are compiled or interpreted.  Version 3.6 reads scalars in a way that
numpy refuses from 2.4 on (triton-lang/triton#9171), and multiplies the bits of bfloat16 as integers (#11584).  Both are
mended here, for tests alone.  Its matrix products come from numpy's BLAS, where a row's bits depend on its place in the
matrix; on a GPU they do not, so here products are plain sums.
"""

from __future__ import annotations

import os
from typing import Any

import torch

# not by the device node, which a machine may lack whose GPU torch can use
IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" or not torch.cuda.is_available()
DEVICE = "cpu" if IS_INTERPRETED else "cuda"

if IS_INTERPRETED:
    os.environ["TRITON_INTERPRET"] = "1"
    import numpy as np
    import triton.language as tl
    from triton.runtime import interpreter

    _patch = interpreter._patch_lang_tensor

    def _patch_with_scalars(tensor: Any, scope: Any) -> None:
        _patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    def _product(self: Any, a: Any, b: Any, d: Any, *_: Any) -> Any:
        left, right = (_widened(x) for x in (a, b))
        return interpreter.TensorHandle(np.einsum("ik,kj->ij", left, right) + d.data, d.dtype.scalar)

    def _widened(x: Any) -> Any:
        if x.dtype.scalar == tl.float32:
            return x.data
        if x.dtype.scalar == tl.int8:
            return x.data.astype(np.int32)
        return interpreter._convert_float(x.data, x.dtype.scalar, tl.float32, None).view(np.float32)

    _patch_lang, _patched = interpreter._patch_lang, set()

    def _patch_once(fn: Any) -> Any:
        """Triton looks through its language at every call of a function; here the first patch stays for good."""
        is_core = any(value is tl.core for value in fn.__globals__.values())
        if is_core not in _patched:
            _patched.add(is_core)
            _patch_lang(fn)
        return interpreter._LangPatchScope()

    _get_dtype, _dtypes = interpreter._get_np_dtype, {}

    def _get_dtype_once(kind: Any) -> Any:
        """Triton makes a table of all of them at every call."""
        if kind.name not in _dtypes:
            _dtypes[kind.name] = _get_dtype(kind)
        return _dtypes[kind.name]

    _make_tuple = tl.core.tuple.__init__

    def _make_untyped(self: Any, args: Any, type: Any = None) -> None:
        """Every tensor has a tuple for its shape, whose type is hardly ever read and took a fifth of all time."""
        if type is None:
            self.values = list(args)
        else:
            _make_tuple(self, args, type)

    def _find(self: Any, name: str) -> Any:
        if name != "type":
            return self.values[self.type.fields.index(name)]
        _make_tuple(self, self.values)
        return self.type

    _shapes: dict[Any, Any] = {}

    def _make_block(self: Any, element_ty: Any, shape: Any) -> None:
        """Checks a shape once."""
        key = tuple(size.value if isinstance(size, tl.constexpr) else size for size in shape)
        if key not in _shapes:
            numel = tl.core.validate_block_shape(key)
            if not key:
                raise TypeError("0d block_type is forbidden")
            sizes = tl.core.tuple([tl.constexpr(size) for size in key])
            _shapes[key] = tl.core.tuple(key), numel, sizes, tl.constexpr(numel)
        self.element_ty, self.known = element_ty, _shapes[key]
        self.shape, self.numel = self.known[:2]

    _no_shape = tl.core.tuple([]), tl.constexpr(1)

    def _make_tensor(self: Any, handle: Any, type: Any) -> None:
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.shape, self.numel = type.known[2:] if type.is_block() else _no_shape

    def _patch_attr(obj: Any, name: str, member: Any, builder: Any, scope: Any) -> None:
        semantic = interpreter.TritonSemantic(builder)
        inner = getattr(member, "__wrapped__", member)  # without the check that there are semantics

        def call(*args: Any, **kwargs: Any) -> Any:
            kwargs["_semantic"] = semantic
            return inner(*args, **kwargs)

        scope.set_attr(obj, name, call)

    # Its check of integers for overflow is thrown away unless kernels are debugged, and took a third of all time.
    interpreter.interpreter_builder.options = interpreter.InterpreterOptions(sanitize_overflow=False)
    interpreter._patch_attr = _patch_attr
    tl.core.block_type.__init__, tl.core.tensor.__init__ = _make_block, _make_tensor
    tl.core.block_type.name = property(lambda self: f"<{self.shape}, {self.element_ty}>")
    tl.core.tuple.__init__, tl.core.tuple.__getattr__ = _make_untyped, _find
    interpreter._get_np_dtype = _get_dtype_once
    interpreter._patch_lang = _patch_once
    interpreter._patch_lang_tensor = _patch_with_scalars
    interpreter.InterpreterBuilder.create_dot = _product
