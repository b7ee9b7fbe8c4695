"""KV over NCCL between two processes: on one GPU as far as NCCL allows it to two ranks that name different hosts."""

from __future__ import annotations

import os
import subprocess

import pytest
import torch

from tests.support.servers.module_command import module_command

WAIT_S = 120
needs_gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
MAKERS = [
    # frames in order between processes are also what the conformance tests of transports send
    pytest.param("ordered-gloo", marks=pytest.mark.slow),
    pytest.param("nccl", marks=needs_gpu),
]


def run_pair(maker: str, *, is_killed: bool = False) -> str:
    """The last line of the receiver; ``is_killed``: the sender, once half of the frames have left."""
    command = [*module_command("tests.support.kv.group_pair"), maker]
    env = {**os.environ, "NCCL_DEBUG": "WARN", "NCCL_DEBUG_FILE": "/dev/stderr"}
    if is_killed:
        env["PAIR_TIMEOUT_S"] = "45"  # the sender imports torch in that time
    with subprocess.Popen(
        [*command, "receive"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**env, "NCCL_HOSTID": "receiver"},
    ) as receiver:  # fmt: skip
        assert receiver.stdout is not None
        offer = receiver.stdout.readline().strip()
        with subprocess.Popen(
            [*command, "send-half" if is_killed else "send", offer], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env={**env, "NCCL_HOSTID": "sender"},
        ) as sender:  # fmt: skip
            try:
                assert sender.stdout is not None
                sender.stdout.readline()
                receiver.stdout.readline()  # half is read: what a killed source left unread may be lost with its pair
                if is_killed:
                    sender.kill()
                out, errors = receiver.communicate(timeout=WAIT_S)
                if not is_killed:
                    sender.communicate(b"\n", timeout=WAIT_S)
            finally:
                receiver.kill()
                sender.kill()
    if "Duplicate GPU" in errors:
        pytest.skip("NCCL refuses two ranks on one GPU, although they name different hosts")
    assert receiver.returncode == 0, errors[-2000:]
    return out.strip()


@pytest.mark.parametrize("maker", MAKERS)
def test_frames_cross_a_communicator_of_two_processes(maker: str) -> None:
    assert run_pair(maker) == "all frames are right"


@pytest.mark.parametrize("maker", MAKERS)
def test_a_receiver_outlives_a_killed_source(maker: str) -> None:
    assert run_pair(maker, is_killed=True).startswith("the pair is lost after 2 frames: ")
