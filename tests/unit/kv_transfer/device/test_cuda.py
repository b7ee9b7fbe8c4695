"""The layer over ``libcuda`` when its calls fail: everything that was taken is given back."""

import ctypes
from collections.abc import Callable

import pytest

from stratos.kv_transfer.device.cuda import CudaMemory
from stratos.kv_transfer.device.memory import HANDLE_BYTES, NoDeviceRoomError

OUT_OF_MEMORY, INVALID = 2, 1
SIZE = 4096


class Library:
    """Counts calls and answers each with the code that ``failing`` has for it."""

    def __init__(self) -> None:
        self.failing: dict[str, int] = {}
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., int]:
        def call(*arguments: object) -> int:
            self.calls.append(name)
            if name == "cuMemGetAddressRange_v2":
                ctypes.cast(arguments[1], ctypes.POINTER(ctypes.c_size_t))[0] = SIZE  # type: ignore[arg-type]
            return self.failing.get(name, 0)

        return call


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    made = Library()
    monkeypatch.setattr(ctypes, "CDLL", lambda _: made)
    return made


@pytest.mark.parametrize("name", ["cuMemsetD8_v2", "cuCtxSynchronize", "cuIpcGetMemHandle"])
def test_memory_that_cannot_be_exported_is_freed(library: Library, name: str) -> None:
    library.failing[name] = INVALID
    with pytest.raises(RuntimeError, match=name) as caught:
        CudaMemory(0, "GPU-1").export(SIZE)
    assert not isinstance(caught.value, NoDeviceRoomError)
    del caught
    assert library.calls.count("cuMemFree_v2") == 1


def test_out_of_memory_is_told_from_other_faults(library: Library) -> None:
    library.failing["cuMemAlloc_v2"] = OUT_OF_MEMORY
    with pytest.raises(NoDeviceRoomError, match="answered 2"):
        CudaMemory(0, "GPU-1").export(SIZE)
    assert "cuMemFree_v2" not in library.calls


def test_memory_is_unmapped_even_if_its_stream_cannot_be_destroyed(library: Library) -> None:
    attached = CudaMemory(0, "GPU-1").attach(bytes(HANDLE_BYTES), SIZE)
    library.failing["cuStreamDestroy_v2"] = INVALID
    with pytest.raises(RuntimeError, match="cuStreamDestroy_v2"):
        attached.detach()
    assert library.calls.count("cuIpcCloseMemHandle") == 1
