"""The GPU's runner on a CPU: tables, padding and overlap, with interpreted kernels and a capture that runs again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.reference.triton_interpreter import DEVICE
from stratos.common.errors import InvalidCheckpoint
from stratos.core.files.adapter_files import AdapterFiles, read_adapter_files
from stratos.core.kv import KvRange
from stratos.core.requests.watermark import Watermark
from stratos.engine.attention import triton_paged
from stratos.engine.contract.plan import PromptTargets, StepPlan
from stratos.engine.lora.grouped import GroupedAdapters
from stratos.engine.runner.cuda.graphs import DecodeGraphs, DecodeOutputs, padded_sizes
from stratos.engine.runner.cuda.runner import CudaRunner
from stratos.engine.runner.cuda.sequence_rows import SequenceRows
from stratos.engine.runner.torch_runner import TorchRunner
from stratos.engine.settings import RunnerConfig
from stratos.engine.triton_kernels import sampling
from tests.support.reference.tiny_models import FAMILIES, save_adapter, save_tiny, save_tiny_llama
from tests.support.worlds.engine_settings import runner_config, scheduler_config
from tests.support.worlds.mixed_requests import PARAMS as PLAIN_PARAMS
from tests.support.worlds.mixed_requests import PROMPT, mixed_requests
from tests.support.worlds.plan_driver import FULL, Driver, all_logprobs

SHAPE: dict[str, Any] = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
Tokens = dict[tuple[str, int], Any]
PARAMS = [*PLAIN_PARAMS, {"temperature": 1.0, "watermark": Watermark(key=b"k" * 16, delta=5.0)}]


class Recording:
    """A capture that keeps the work and does it again; outputs stay where the capture put them, as with a graph."""

    def __init__(self) -> None:
        self.num_captured, self.num_replayed = 0, 0

    def __call__(self, work: Callable[[], DecodeOutputs]) -> tuple[Callable[[], object], DecodeOutputs]:
        outputs = work()
        self.num_captured += 1

        def replay() -> None:
            self.num_replayed += 1
            fresh = work()
            outputs.logits.copy_(fresh.logits)
            outputs.is_bad.copy_(fresh.is_bad)

        return replay, outputs


@pytest.fixture(autouse=True)
def _small_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_paged, "TARGET_PROGRAMS", 4)
    monkeypatch.setattr(sampling, "VOCAB_BLOCK", 128)
    monkeypatch.setattr(sampling, "SEARCH_BLOCK", 128)


def config(path: Path, **changes: Any) -> RunnerConfig:
    settings = {"block_size": 4, "kv_pool_bytes": 1 << 20, "num_threads": 1, "max_graph_batch": 8, **changes}
    return runner_config(model_path=path, **settings)


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    save_tiny_llama(path, **SHAPE)
    return path


def captured(path: Path, max_batch: int) -> CudaRunner:
    with torch.inference_mode():
        runner = CudaRunner.load(config(path, grouped_lora=False), DEVICE)  # nothing is captured twice
        runner.capture_decodes(max_batch, Recording())
    return runner


@pytest.fixture
def gpu(model_path: Path) -> CudaRunner:
    return captured(model_path, 4)


def generate(
    runner: TorchRunner, overlap: bool, adapters: Sequence[AdapterFiles] = (), num_swaps: int = 0, **scheduler: Any
) -> Tokens:
    pytest.importorskip("llguidance")  # a machine with a GPU may lack it
    from stratos.engine.core import EngineCore
    from tests.support.worlds.core_driver import run

    settings = {"max_num_batched_tokens": 17, "prefix_cache": False, **scheduler}
    engine = EngineCore(runner, scheduler_config(overlap=overlap, **settings))
    for files in adapters:
        engine.load_adapter(files)
    outcomes = run(engine, *mixed_requests(PARAMS, 5, digests=["", *(files.digest for files in adapters)]))
    assert not outcomes.errors
    assert engine.status().host.num_restored == engine.status().host.num_swapped_out >= num_swaps
    return outcomes.choices


@pytest.fixture(scope="module")
def portable(model_path: Path) -> Tokens:
    """What the runner without any kernel of ours says."""
    return generate(TorchRunner.load(config(model_path, native_kernels=False, exact=False)), 0)


@pytest.mark.parametrize("overlap", [pytest.param(False, marks=pytest.mark.slow), True])
def test_tokens_are_those_of_the_portable_runner(model_path: Path, overlap: bool, portable: Tokens) -> None:
    gpu = captured(model_path, 8)
    assert len(portable) == len(PARAMS)
    assert generate(gpu, overlap) == portable
    assert gpu.decoding is not None
    assert set(gpu.decoding.captured) == {1, 2, 4, 8}


@pytest.mark.slow  # tests/unit/engine/memory swaps on the runner that this one inherits it from
def test_swapped_sequences_go_on_with_their_own_kv(model_path: Path, portable: Tokens) -> None:
    block_bytes = 4 * 2 * 10 * 4
    crowded = {"kv_watermark": 1.0, "admission_counts_budgets": False, "default_output_tokens": 1}
    crowded["swap_costs"] = False
    pools = {"kv_pool_bytes": 8 * block_bytes, "host_pool_bytes": 40 * block_bytes}
    assert generate(CudaRunner.load(config(model_path, **pools), DEVICE), 1, num_swaps=1, **crowded) == portable


def test_kv_is_handed_over_alike_with_the_copy_stream_and_without_it(model_path: Path) -> None:
    with_stream, without = (CudaRunner.load(config(model_path, copy_stream=is_on), DEVICE) for is_on in (True, False))
    assert (with_stream.page_copies is None, without.page_copies is None) == (False, True)
    with torch.inference_mode():
        with_stream.pages.tensor.normal_()
    table, kv_range = (4, 9, 2), KvRange(1, 10, 0, 1)
    run = with_stream.gather(table, kv_range)
    without.scatter(table, kv_range, run)
    assert bytes(without.gather(table, kv_range)) == bytes(run)
    with_stream.scatter(table[::-1], kv_range, run)
    assert bytes(with_stream.gather(table[::-1], kv_range)) == bytes(run)


def test_blocks_that_left_a_window_are_released_from_tables_of_the_device(tmp_path: Path) -> None:
    save_tiny(tmp_path, "Mistral", sliding_window=6, tie_word_embeddings=False, **SHAPE)
    portable = generate(TorchRunner.load(config(tmp_path, native_kernels=False, exact=False)), 0, window_release=False)
    assert generate(CudaRunner.load(config(tmp_path), DEVICE), 1) == portable


@pytest.mark.parametrize(("overlap", "is_sorted"), [(True, True), pytest.param(False, False, marks=pytest.mark.slow)])
def test_adapters_mix_with_the_base_model_in_every_step(
    tmp_path: Path, model_path: Path, overlap: bool, is_sorted: bool
) -> None:
    model = save_tiny_llama(tmp_path / "base", **SHAPE)
    adapters = []
    for index in range(2):
        save_adapter(tmp_path / str(index), model, rank=2 + 3 * index, targets=["q_proj", "down_proj"], seed=index)
        adapters.append(read_adapter_files(tmp_path / str(index)))
    plain = TorchRunner.load(config(model_path, native_kernels=False, exact=False))
    portable = generate(plain, 0, adapters)
    assert portable != generate(plain, 0), "the adapters do something"
    gpu = CudaRunner.load(config(model_path, sorted_adapters=is_sorted), DEVICE)
    assert (gpu.decoding_adapters is None) is not is_sorted
    assert generate(gpu, overlap, adapters) == portable


def test_captured_steps_follow_the_adapters_of_each_replay_and_let_go_of_evicted_ones(
    tmp_path: Path, model_path: Path
) -> None:
    model = save_tiny_llama(tmp_path / "base", **SHAPE)
    for index in range(4):
        save_adapter(tmp_path / str(index), model, rank=2 + index, targets=["q_proj", "down_proj"], seed=index)
    files = [read_adapter_files(tmp_path / str(index)) for index in range(4)]
    gpu = CudaRunner.load(config(model_path, max_graph_batch=2, max_resident_adapters=2), DEVICE)
    capture = Recording()
    gpu.capture_decodes(2, capture)
    portable = TorchRunner.load(config(model_path, native_kernels=False, exact=False, max_resident_adapters=2))
    logprobs = [_of_adapters_in_turn(runner, files[:2]) for runner in (gpu, portable)]
    assert capture.num_replayed == 3
    assert torch.allclose(logprobs[0], logprobs[1], atol=1e-3)
    assert not torch.allclose(logprobs[0][0], logprobs[0][1], atol=1e-2), "the second replay took the other adapter"
    assert gpu.grouped is not None
    assert gpu.grouped.holds_any
    for evicting in files[2:]:
        gpu.adapters.load(evicting)
    driver = Driver(gpu)
    stream = driver.stream(PROMPT[:1])
    driver.step([(stream, stream.row(1))])
    assert not gpu.grouped.holds_any, "a step without adapters frees what was evicted"


def test_a_step_with_an_adapter_of_too_many_ranks_runs_eagerly_and_the_others_are_captured(
    tmp_path: Path, model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = save_tiny_llama(tmp_path / "base", **SHAPE)
    for index in range(2):
        save_adapter(tmp_path / str(index), model, rank=2 + index, targets=["q_proj"], seed=index)
    files = [read_adapter_files(tmp_path / str(index)) for index in range(2)]
    monkeypatch.setattr(GroupedAdapters, "fits", lambda _, group: group.weights.max_ranks <= 2)
    gpu = CudaRunner.load(config(model_path, max_graph_batch=2, max_resident_adapters=2), DEVICE)
    capture = Recording()
    gpu.capture_decodes(2, capture)
    portable = TorchRunner.load(config(model_path, native_kernels=False, exact=False, max_resident_adapters=2))
    logprobs = [_of_adapters_in_turn(runner, files) for runner in (gpu, portable)]
    assert capture.num_replayed == 1
    assert torch.allclose(logprobs[0], logprobs[1], atol=1e-3)


def _of_adapters_in_turn(runner: TorchRunner, adapters: Sequence[AdapterFiles]) -> torch.Tensor:
    """Log probabilities of decode steps with the first adapter, the second one, and both: [4, vocab]."""
    for files in adapters:
        runner.adapters.load(files)
    driver = Driver(runner)
    first, second = (driver.stream(PROMPT[:3], params=FULL, adapter=files.digest) for files in adapters)
    driver.step([(stream, stream.row(2, is_sampling=False)) for stream in (first, second)])
    found = []
    for streams in ([first], [second], [second, first]):
        driver.step([(stream, stream.row(1)) for stream in streams])
        found += [all_logprobs(stream.sampled[-1]) for stream in streams]
    return torch.stack(found)


def test_mixtures_of_experts_decode_in_captured_steps(tmp_path: Path) -> None:
    prefix, changes = FAMILIES["mixtral"]
    save_tiny(tmp_path, prefix, **{**changes, **SHAPE})
    tokens = []
    with torch.inference_mode():
        gpu = CudaRunner.load(config(tmp_path, grouped_lora=False), DEVICE)
        capture = Recording()
        gpu.capture_decodes(2, capture)
    for runner in (gpu, TorchRunner.load(config(tmp_path, native_kernels=False, exact=False))):
        driver = Driver(runner)
        streams = [driver.stream(PROMPT[:length]) for length in (9, 3)]
        driver.generate(streams, 3)
        tokens.append([stream.tokens for stream in streams])
    assert tokens[0] == tokens[1]
    assert capture.num_replayed == 2


def test_tokens_are_the_same_with_the_baselines_of_the_switches(model_path: Path, portable: Tokens) -> None:
    off = (
        "split_kv", "balanced_kv", "triton_sampler", "fused_ops", "grouped_lora", "grouped_experts", "prepare_kernel",
        "gemm_choice",
    )  # fmt: skip
    baseline = config(model_path, **dict.fromkeys(off, False))
    assert generate(CudaRunner.load(baseline, DEVICE), 1) == portable


def test_tokens_are_the_same_with_one_kernel_for_the_inputs_of_a_captured_step(
    model_path: Path, portable: Tokens
) -> None:
    capture = Recording()
    runner = CudaRunner.load(config(model_path, prepare_kernel=True, grouped_lora=False), DEVICE)
    runner.capture_decodes(8, capture)
    assert generate(runner, 1) == portable
    assert capture.num_replayed > 2


def test_warming_up_runs_every_stage_and_leaves_nothing(gpu: CudaRunner) -> None:
    gpu.warm_up()
    assert not gpu.pages.tensor.any()
    assert gpu.tables.rows.send(0, 1) == 0


@pytest.mark.parametrize("chunk", [1, 9])
def test_prompt_tokens_are_scored(model_path: Path, gpu: CudaRunner, chunk: int) -> None:
    scores = []
    for runner in (gpu, TorchRunner.load(config(model_path, native_kernels=False, exact=False))):
        driver = Driver(runner)
        stream = driver.stream(PROMPT[:10])
        driver.step([(stream, stream.row(8))])
        row = replace(stream.row(chunk, is_sampling=False), targets=PromptTargets(0, (PROMPT[9],), 2))
        (entry,) = driver.step([(stream, row)]).prompt_logprobs[stream.seq_id]
        scores.append({token.token_id: token.logprob for token in (entry.sampled, *entry.top)})
    assert scores[0] == pytest.approx(scores[1], abs=1e-3)


def test_a_block_table_wider_than_the_context_stays_in_its_row(gpu: CudaRunner) -> None:
    driver = Driver(gpu)
    streams = [driver.stream(PROMPT[:length]) for length in (3, 9)]
    driver.generate(streams, 1)
    rows = [(stream, stream.row(1)) for stream in streams]
    wide = [(streams[1], rows[1][1]), (streams[0], replace(rows[0][1], block_table=streams[0].blocks + (7,) * 40))]
    before = gpu.tables.block_tables.clone()
    driver.step(wide)
    others = torch.ones(len(before), dtype=torch.bool)
    others[gpu.tables.rows.place([stream.seq_id for stream in streams])] = False
    assert torch.equal(before[others], gpu.tables.block_tables[others])


def test_steps_of_all_sizes_share_the_memory_of_their_logits(gpu: CudaRunner) -> None:
    assert gpu.decoding is not None
    places = set()
    with torch.inference_mode():
        for size in (1, 2):
            gpu.tables.fill((), size)
            places.add(gpu.decoding.step(size).logits.data_ptr())
    assert len(places) == 1


def test_it_runs_one_step_ahead_by_itself(gpu: CudaRunner) -> None:
    assert gpu.info.overlap


def test_decode_steps_replay_and_write_kv_only_where_they_must(gpu: CudaRunner) -> None:
    driver = Driver(gpu)
    streams = [driver.stream(PROMPT[:length]) for length in (3, 9, 4)]
    driver.generate(streams, 1)
    before = gpu.pages.tensor.clone()
    driver.step([(stream, stream.row(1)) for stream in streams])
    changed = {int(block) for block in (gpu.pages.tensor != before).flatten(1).any(1).nonzero()}
    assert changed == {stream.blocks[(stream.num_computed - 1) // 4] for stream in streams}


def test_a_row_with_bad_values_fails_alone_in_a_decode_step(gpu: CudaRunner) -> None:
    driver = Driver(gpu)
    streams = [driver.stream(PROMPT[:length]) for length in (3, 9)]
    driver.generate(streams, 1)
    with torch.inference_mode():
        gpu.decoder.embedding = gpu.decoder.embedding.clone()  # the output layer shares its memory
        gpu.decoder.embedding[streams[0].tokens[-1]] = float("nan")
    streams[1].tokens[-1] = (streams[0].tokens[-1] + 1) % 97
    tokens = driver.step([(stream, stream.row(1)) for stream in streams])
    assert list(tokens.errors) == [streams[0].seq_id]
    assert [token.seq_id for token in tokens.tokens] == [streams[1].seq_id]


def test_a_token_outside_of_the_vocabulary_is_reported(gpu: CudaRunner) -> None:
    driver = Driver(gpu)
    good, bad = driver.stream(PROMPT[:1]), driver.stream([97])
    tokens = driver.step([(good, good.row(1)), (bad, bad.row(1))])
    assert list(tokens.errors) == [bad.seq_id]
    assert [token.seq_id for token in tokens.tokens] == [good.seq_id]


def test_an_empty_plan_does_nothing(gpu: CudaRunner) -> None:
    handle = gpu.launch(StepPlan(step=0, rows=()))
    gpu.sample(handle)
    assert gpu.collect(handle).tokens == []


def test_sizes_grow_and_end_at_the_largest() -> None:
    assert padded_sizes(8) == [1, 2, 4, 8]
    assert padded_sizes(5) == [1, 2, 4, 5]
    assert padded_sizes(256)[-5:] == [128, 160, 192, 224, 256]


def test_captures_go_from_large_to_small_and_a_batch_takes_the_next_size() -> None:
    captured = []

    def run(size: int) -> DecodeOutputs:
        captured.append(size)
        return DecodeOutputs(torch.zeros(size, 2), torch.zeros(size, dtype=torch.bool))

    graphs = DecodeGraphs(run, 16, Recording())
    assert captured == [16, 8, 4, 2, 1]
    assert [graphs.padded(rows) for rows in (1, 3, 9, 16)] == [1, 4, 16, 16]
    assert graphs.step(4).logits.shape == (4, 2)


def test_rows_are_stable_and_the_longest_unused_one_is_given_away() -> None:
    rows = SequenceRows(4)
    first = rows.place([10, 11])
    assert rows.place([11, 10]) == first[::-1]
    assert [rows.send(first[0], count) for count in (2, 2, 3)] == [0, 2, 2]
    rows.changed(10, 1)
    rows.changed(99, 0)
    assert [rows.send(row, 3) for row in first] == [1, 0]
    rows.place([12, 13])
    rows.place([10, 12])
    assert rows.place([14, 15]) == [first[1], rows.place([15])[0]]
    assert rows.send(first[1], 1) == 0
    with pytest.raises(ValueError, match="hold 2"):
        rows.place([1, 2, 3])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu_is_told_plainly(model_path: Path) -> None:
    with pytest.raises(InvalidCheckpoint, match="no GPU"):
        CudaRunner.load(config(model_path))
