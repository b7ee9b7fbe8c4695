"""Host memory that a GPU's driver refuses to register."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from stratos.engine.memory.named_memory import NamedMemory

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_a_refusal_of_the_driver_ends_no_later_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    codes = list[int]()

    class Twice:
        def cudaHostRegister(self, address: int, *arguments: int) -> int:
            """The second time it is registered already."""
            codes.extend(int(runtime.cudaHostRegister(address, *arguments)) for _ in range(2))
            codes.append(int(runtime.cudaHostUnregister(address)))
            return codes[1]

    monkeypatch.setattr(torch.cuda, "cudart", Twice)
    memory = NamedMemory("test", (1 << 20) + 4096, is_pinned=True)
    assert codes[0] == codes[2] == 0 != codes[1]
    assert memory.tensor.nbytes == (1 << 20) + 4096
    assert memory.tensor.is_pinned()
    assert torch.zeros(3, device="cuda").add_(1).tolist() == [1, 1, 1]
