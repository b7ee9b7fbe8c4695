"""KV over NCCL between two processes: on one GPU as far as NCCL allows it to two ranks that name different hosts."""

from __future__ import annotations

import os
import subprocess

import pytest
import torch

from tests.support.servers.module_command import module_command

WAIT_S = 120


def run_pair(maker: str) -> tuple[str, str]:
    """The last line and the errors of the receiver."""
    command = [*module_command("tests.support.kv.group_pair"), maker]
    env = {**os.environ, "NCCL_DEBUG": "WARN"}
    with subprocess.Popen(
        [*command, "receive"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**env, "NCCL_HOSTID": "receiver"},
    ) as receiver:  # fmt: skip
        assert receiver.stdout is not None
        offer = receiver.stdout.readline().strip()
        with subprocess.Popen(
            [*command, "send", offer], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
            env={**env, "NCCL_HOSTID": "sender"},
        ) as sender:  # fmt: skip
            try:
                out, errors = receiver.communicate(timeout=WAIT_S)
                sender.communicate(b"\n", timeout=WAIT_S)
            finally:
                receiver.kill()
                sender.kill()
    return out.strip(), errors


@pytest.mark.slow  # frames in order between processes are also what the conformance tests of transports send
def test_the_pair_itself_is_right_without_a_gpu() -> None:
    assert run_pair("ordered-gloo")[0] == "all frames are right"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_frames_cross_a_communicator_of_two_processes() -> None:
    said, errors = run_pair("nccl")
    if said != "all frames are right" and "Duplicate GPU" in errors:
        pytest.skip("NCCL refuses two ranks on one GPU, although they name different hosts")
    assert said == "all frames are right", errors[-2000:]
