"""KV in fp8: attention over scaled pages, scales out of a checkpoint, and a runner that is told to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.reference.triton_interpreter import DEVICE
from stratos.common.errors import InvalidCheckpoint
from stratos.core.kv import KvGeometry, KvRange
from stratos.engine.attention import triton_paged
from stratos.engine.attention.backend import RowSpan
from stratos.engine.attention.paged import TorchPagedAttention
from stratos.engine.attention.triton_paged import TritonPagedAttention
from stratos.engine.layers.rotary import RopeRows
from stratos.engine.memory.kv_pages import KvPages
from stratos.engine.runner.cuda.runner import CudaRunner
from stratos.engine.runner.torch_runner import TorchRunner
from stratos.engine.triton_kernels import sampling
from tests.support.reference.tiny_models import save_tiny_llama
from tests.support.worlds.engine_settings import runner_config
from tests.support.worlds.plan_driver import FULL, Driver, all_logprobs

HEADS, KV_HEADS, DIM, BLOCK, LAYERS = 6, 2, 10, 4, 2
SPANS = [RowSpan(0, 1, 9, (5, 2, 7)), RowSpan(1, 6, 3, (1, 9, 3)), RowSpan(7, 1, 0, (4,))]
TOKENS, BLOCKS = 8, 10
SCALES = {"model.layers.0.self_attn.k_scale": 0.5, "model.layers.1.self_attn.v_proj.v_scale": 0.25}


@pytest.fixture(autouse=True)
def _small_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_paged, "TARGET_PROGRAMS", 4)
    monkeypatch.setattr(sampling, "VOCAB_BLOCK", 128)
    monkeypatch.setattr(sampling, "SEARCH_BLOCK", 128)


def geometry(element_bytes: int) -> KvGeometry:
    return KvGeometry(
        num_layers=LAYERS, num_kv_heads=KV_HEADS, head_dim=DIM, block_size=BLOCK, element_bytes=element_bytes
    )


@pytest.mark.parametrize("is_exact", [False, True])
def test_attention_equals_the_portable_one_where_fp8_is_exact(is_exact: bool) -> None:
    # numbers that fp8 has exactly, so that nothing is rounded: scales and layout are what is tested
    torch.manual_seed(0)
    scales = torch.tensor([[[0.5, 1.0], [0.25, 2.0]], [[2.0, 0.125], [1.0, 0.5]]], device=DEVICE)
    held = torch.randint(-8, 9, (BLOCKS, LAYERS, 2, KV_HEADS, BLOCK, DIM), device=DEVICE).float() / 8
    new = torch.randint(-8, 9, (TOKENS, 2, KV_HEADS, DIM), device=DEVICE).float() / 8
    query = torch.randn(TOKENS, HEADS, DIM, device=DEVICE)
    rope = RopeRows(torch.ones(TOKENS, DIM, device=DEVICE), torch.zeros(TOKENS, DIM, device=DEVICE))
    plain = KvPages(geometry(4), BLOCKS, torch.float32, torch.device(DEVICE))
    plain.tensor.copy_(held * scales[None, :, :, :, None, None])
    packed = KvPages(geometry(1), BLOCKS, torch.float8_e4m3fn, torch.device(DEVICE))
    packed.tensor.copy_(held)
    kernels = [
        TorchPagedAttention(plain, HEADS, (None, 5)),
        TritonPagedAttention(packed, HEADS, (None, 5), dtype=torch.float32, kv_scales=scales, is_exact=is_exact),
    ]
    for layer in range(LAYERS):
        kv = (new * scales[layer][None, :, :, None]).view(TOKENS, -1)
        qkv = torch.cat((query.view(TOKENS, -1), kv), 1)
        left, right = (k.forward(layer, qkv.clone(), rope, None, k.prepare(SPANS)) for k in kernels)
        assert torch.allclose(left, right, atol=1e-5)
        assert torch.equal(plain.tensor[:, layer], packed.tensor[:, layer].float() * scales[layer][..., None, None])


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    save_tiny_llama(path, num_attention_heads=2, num_key_value_heads=1)
    write_scales(path, {name: torch.tensor(value) for name, value in SCALES.items()})
    return path


def write_scales(path: Path, scales: dict[str, torch.Tensor]) -> None:
    from safetensors.torch import load_file, save_file

    file = path / "model.safetensors"
    save_file({**load_file(file), **scales}, file, metadata={"format": "pt"})


def load(path: Path, runner: type[TorchRunner] = CudaRunner, **changes: Any) -> Any:
    settings = {"block_size": 4, "kv_pool_bytes": 1 << 20, "num_threads": 1, "max_graph_batch": 8, **changes}
    return runner.load(runner_config(model_path=path, **settings), DEVICE if runner is CudaRunner else "cpu")


def test_a_runner_keeps_scaled_kv_in_a_quarter_of_the_bytes(model_path: Path) -> None:
    whole, packed = load(model_path), load(model_path, kv_dtype="fp8")
    assert packed.info.num_blocks // whole.info.num_blocks == 4
    assert packed.info.identity.kv_dtype == "fp8"
    assert packed.info.identity.numerics_id != whole.info.identity.numerics_id
    assert packed.attention.kv_scales[:, :, 0].tolist() == [[0.5, 1.0], [1.0, 0.25]]
    logprobs = []
    for runner in (whole, packed):
        driver = Driver(runner)
        stream = driver.stream([(i * 29 + 3) % 97 for i in range(14)], params=FULL)
        driver.generate([stream], 1)
        stream.tokens[-1] = 5
        stream.sampled.clear()
        driver.generate([stream], 1)
        logprobs.append(all_logprobs(stream.sampled[0]))
    difference = (logprobs[0] - logprobs[1]).abs().max()
    assert 0 < difference < 1.5, "three bits of mantissa, and not another scale"


def test_blocks_are_copied_and_handed_over_byte_by_byte(model_path: Path) -> None:
    source, target = load(model_path, kv_dtype="fp8"), load(model_path, kv_dtype="fp8")
    with torch.inference_mode():
        source.pages.tensor.view(torch.uint8).random_(0, 120)
        source.pages.copy_blocks([(1, 3), (2, 4)])
    run = source.gather((1, 2), KvRange(0, 7, 0, 2))
    assert bytes(run) == bytes(source.gather((3, 4), KvRange(0, 7, 0, 2)))
    target.scatter((6, 5), KvRange(0, 7, 0, 2), run)
    assert bytes(target.gather((6, 5), KvRange(0, 7, 0, 2))) == bytes(run)


def test_kv_of_a_cpu_has_other_scales_and_another_identity(model_path: Path) -> None:
    assert load(model_path, TorchRunner, kv_dtype="fp8").info.identity.kv_dtype == "fp8-token"
    assert load(model_path, TorchRunner).info.identity.kv_dtype == "float32"


@pytest.mark.parametrize("scale", [torch.tensor(0.0), torch.tensor(float("nan")), torch.ones(2)])
def test_a_scale_that_is_no_positive_number_is_refused(tmp_path: Path, scale: torch.Tensor) -> None:
    save_tiny_llama(tmp_path)
    write_scales(tmp_path, {"model.layers.1.self_attn.v_scale": scale})
    with pytest.raises(InvalidCheckpoint, match="one positive number"):
        load(tmp_path, kv_dtype="fp8")
