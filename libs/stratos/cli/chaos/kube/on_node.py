"""A program that runs in a pod on a victim's node, as root in the node's process namespace; the standard library alone.

Its first argument is a task: the kind of fault, the id of the victim's container (or a process), and how long it lasts.
It prints lines of JSON: that the fault is in effect, then its proof, or why it had none. It undoes what it did and ends
in time, whatever becomes of the command that started it.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

STILL_S, MOVING_S, EFFECT_S, LOOK_S, KNOCK_S = 0.09, 0.01, 5.0, 0.02, 2.0
BPF_CALL = {"x86_64": 321, "aarch64": 280}
MAP_CREATE, MAP_LOOKUP, PROG_LOAD, LINK_CREATE = 0, 1, 5, 28
ARRAY, SCHED_CLS, INGRESS, EGRESS, SHOT = 2, 3, 46, 47, 2
"""Of the kernel: a kind of map, one of program, the two ends of an interface, and the verdict that drops a packet."""
NEW_NETWORK = 0x40000000
LIBC = ctypes.CDLL(None, use_errno=True)
Task = dict[str, Any]
Proof = dict[str, Any]


class Unproved(Exception):
    """The fault did not do what its name says."""


def _say(**line: Any) -> None:
    print(json.dumps(line), flush=True)


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:  # it has ended
        return ""


def _first_process(task: Task) -> int:
    """Process id of a container's first process, in this process's own namespace."""
    if "pid" in task:
        return int(task["pid"])
    for name in [path.name for path in Path("/proc").iterdir() if path.name.isdigit()]:
        if task["container"] in _read(f"/proc/{name}/cgroup"):
            inside = [line.split() for line in _read(f"/proc/{name}/status").splitlines() if line.startswith("NSpid:")]
            if inside and inside[0][-1] == "1":
                return int(name)
    raise Unproved(f"there is no process of a container {task['container'][:12]} on this node")


def _is_gone(pid: int) -> bool:
    stat = _read(f"/proc/{pid}/stat")
    return not stat or stat.rpartition(")")[2].split()[0] in "ZX"


def _stands_still(pid: int) -> bool:
    """Whether every thread is stopped; the state of a process is that of its first one."""
    try:
        stats = [_read(f"{thread}/stat") for thread in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        raise Unproved(f"process {pid} ended") from None
    return {stat.rpartition(")")[2].split()[0] for stat in stats if stat} == {"T"}


def _ticks(pid: int) -> int:
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12]) if fields else 0


def _until(is_so: Callable[[], bool], otherwise: str) -> None:
    end = time.monotonic() + EFFECT_S
    while not is_so():
        if time.monotonic() > end:
            raise Unproved(otherwise)
        time.sleep(LOOK_S)


def kill(task: Task) -> Proof:
    """SIGKILL, which ends all that the container runs."""
    pid = _first_process(task)
    held = os.pidfd_open(pid)
    signal.pidfd_send_signal(held, signal.SIGKILL)
    if not select.select([held], [], [], EFFECT_S)[0]:
        raise Unproved(f"process {pid} is alive after SIGKILL")
    _say(in_effect=True)
    return {"pid": pid, "ended": _is_gone(pid)}


def _hold_still(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    _until(lambda: _stands_still(pid), f"process {pid} runs after SIGSTOP")


def _stand_still(pid: int, seconds: float) -> None:
    before = _ticks(pid)
    time.sleep(seconds)
    if not _stands_still(pid) or _ticks(pid) > before:
        raise Unproved(f"process {pid} computed while it should have stood still")


@contextmanager
def _woken(pid: int) -> Iterator[None]:
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def stop(task: Task) -> Proof:
    """SIGSTOP, then SIGCONT."""
    pid = _first_process(task)
    with _woken(pid):
        _hold_still(pid)
        _say(in_effect=True)
        _stand_still(pid, task["lasting_s"])
    return {"pid": pid, "stopped_s": task["lasting_s"], "cpu_s": 0}


def slow(task: Task) -> Proof:
    """Both by turns."""
    pid, num_turns = _first_process(task), max(1, round(task["lasting_s"] / (STILL_S + MOVING_S)))
    with _woken(pid):
        for turn in range(num_turns):
            _hold_still(pid)
            if not turn:
                _say(in_effect=True)
            _stand_still(pid, STILL_S)
            os.kill(pid, signal.SIGCONT)
            time.sleep(MOVING_S)
    return {"pid": pid, "turns": num_turns, "still_s": round(num_turns * STILL_S, 2)}


def _bpf(command: int, content: bytes) -> int:
    """Call of the kernel for its programs. Raises ``Unproved`` where it takes none."""
    buffer = ctypes.create_string_buffer(content.ljust(128, b"\0"), 128)
    result = LIBC.syscall(BPF_CALL[platform.machine()], command, buffer, 128)
    if result < 0:
        why = os.strerror(ctypes.get_errno())
        raise Unproved(f"the kernel {platform.release()} takes no program that drops packets (6.6 does): {why}")
    return int(result)


def _counting_drop(counts: int, place: int) -> int:
    """A program that counts packets in the map, and drops them."""
    instructions = [
        (0x18, 0x21, 0, counts), (0, 0, 0, place),  # r1 = address of the count, by the map's descriptor
        (0xB7, 0x02, 0, 1), (0xDB, 0x21, 0, 0),     # r2 = 1; *r1 += r2
        (0xB7, 0x00, 0, SHOT), (0x95, 0, 0, 0),     # drop
    ]  # fmt: skip
    code = b"".join(struct.pack("<BBhi", *one) for one in instructions)
    held, licence = ctypes.create_string_buffer(code, len(code)), ctypes.create_string_buffer(b"GPL")
    return _bpf(
        PROG_LOAD,
        struct.pack("<IIQQ", SCHED_CLS, len(instructions), ctypes.addressof(held), ctypes.addressof(licence)),
    )


def _dropped(counts: int) -> tuple[int, int]:
    """Packets that came in and that went out."""
    key, value = ctypes.create_string_buffer(4), ctypes.create_string_buffer(16)
    _bpf(MAP_LOOKUP, struct.pack("<IIQQ", counts, 0, ctypes.addressof(key), ctypes.addressof(value)))
    came, went = struct.unpack("<QQ", value.raw)
    return came, went


def _is_let_in(knocker: socket.socket, address: tuple[str, int] | None, seconds: float) -> bool:
    """Whether a connection is made within the time; each socket can be asked once."""
    if address is None:
        return False
    knocker.settimeout(seconds)
    try:
        knocker.connect(address)
    except OSError:
        return False
    finally:
        knocker.close()
    return True


def partition(task: Task) -> Proof:
    """Every packet of the pod's network is dropped, both ways; its loopback stays."""
    pid = _first_process(task)
    address = (task["address"], task["port"]) if task.get("port") else None
    before, during = socket.socket(), socket.socket()  # of the node's network, whatever this process enters
    was_let_in = _is_let_in(before, address, KNOCK_S)
    with _wall(pid) as counts:
        _say(in_effect=True)
        end_s = time.monotonic() + task["lasting_s"]
        is_let_in = was_let_in and _is_let_in(during, address, task["lasting_s"])
        time.sleep(max(0.0, end_s - time.monotonic()))
        came, went = _dropped(counts)
    if is_let_in:
        raise Unproved(f"process {pid} took a new connection during the partition")
    if _is_gone(pid):
        raise Unproved(f"process {pid} ended during the partition")
    if not came + went:
        raise Unproved("no packet came or went, so nothing shows that it was cut off")
    return {
        "pid": pid,
        "apart_s": task["lasting_s"],
        "packets_in_dropped": came,
        "packets_out_dropped": went,
        "refused_at_ports": int(was_let_in),
    }


@contextmanager
def _wall(pid: int) -> Iterator[int]:
    """A map with two counts, of the packets that are dropped; the kernel ends it with this process, too."""
    with ExitStack() as stack, Path(f"/proc/{pid}/ns/net").open() as network:
        if LIBC.setns(network.fileno(), NEW_NETWORK):
            raise Unproved(f"the network of process {pid} cannot be entered: {os.strerror(ctypes.get_errno())}")
        counts = _bpf(MAP_CREATE, struct.pack("<IIII", ARRAY, 4, 16, 1))
        stack.callback(os.close, counts)
        for place, end in ((0, INGRESS), (8, EGRESS)):
            program = _counting_drop(counts, place)
            stack.callback(os.close, program)
            for index in [index for index, name in socket.if_nameindex() if name != "lo"]:
                stack.callback(os.close, _bpf(LINK_CREATE, struct.pack("<IIII", program, index, end, 0)))
        yield counts


def main(task: Task) -> None:
    """Do a task, and say what came of it."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # through what undoes the fault
    try:
        _say(proof={"kill": kill, "stop": stop, "slow": slow, "partition": partition}[task["kind"]](task))
    except Unproved as error:
        _say(no_effect=str(error))
    except OSError as error:
        _say(no_effect=f"{task['kind']} could not be done: {error}")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
