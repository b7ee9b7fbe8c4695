"""A step of the wall clock as one process reads it: its copy of the kernel's page of clock functions is rewritten.

Every process reads its clocks through the vDSO, a page of code that the kernel maps into it.  A debugger may write a
copy of that page for one process, so neither root nor another process is needed.  The monotonic clock stays.
"""

from __future__ import annotations

import asyncio
import ctypes
import inspect
import platform
import struct
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from stratos.cli.chaos.faults import clock_code
from stratos.cli.chaos.faults.clock_code import Patch, write_code
from stratos.cli.chaos.faults.contract import NoEffect, Proof, Strike, only_one
from stratos.cli.chaos.faults.waking import undone_in_the_end

STEP_S = 3600
"""An hour forwards, and back in the end."""
TOLERANCE_S = 60.0
_CODE = {
    # mov eax, 228; syscall; test rax, rax; jnz end; test edi, edi; jz add; cmp edi, 5; jne end; add [rsi], STEP; end
    b"__vdso_clock_gettime": ("b8e4000000 0f05 4885c0 7510 85ff 7405 83ff05 7507 488106", "c3"),
    # mov eax, 96; syscall; test rdi, rdi; jz end; add [rdi], STEP; end: ret
    b"__vdso_gettimeofday": ("b860000000 0f05 4885ff 7407 488107", "c3"),
    # mov eax, 201; syscall; add rax, STEP; test rdi, rdi; jz end; mov [rdi], rax; end: ret
    b"__vdso_time": ("b8c9000000 0f05 4805", "4885ff 7403 488907 c3"),
}
"""Machine code of the functions on x86-64, before and after the step's 32 bits: the system call, and an addition."""


async def clock(strike: Strike) -> Proof:
    """The process reads an hour more on its wall clock, for a while; it must say so itself."""
    process = await strike.process()
    patches = list(_patches(process.pid))
    words = [word for patch in patches for word in patch]
    by_hand = f"the clock of process {process.pid} is {STEP_S} s ahead; start it again"
    difference_s = await strike.place.clock_ahead_s(strike.target)
    if abs(difference_s) > TOLERANCE_S:
        raise NoEffect(f"the clock of process {process.pid} is {difference_s:.0f} s ahead already")
    with (
        only_one(process.pid, "clock") as place,
        undone_in_the_end(_STEP_BACK, process.pid, *words, by_hand=by_hand) as hold,
    ):
        hold(place.fileno())
        await _write(process.pid, patches)
        strike.in_effect.set()
        difference_s = await strike.place.clock_ahead_s(strike.target)
        await asyncio.sleep(strike.lasting_s)
    if abs(difference_s - STEP_S) > TOLERANCE_S:
        raise NoEffect(f"process {process.pid} says that its clock is {difference_s:.0f} s ahead")
    if abs(await strike.place.clock_ahead_s(strike.target)) > TOLERANCE_S:
        raise NoEffect(f"process {process.pid} did not come back to the true time")
    return {"pid": process.pid, "ahead_s": round(difference_s), "lasted_s": strike.lasting_s}


async def _write(pid: int, patches: Sequence[Patch]) -> None:
    """Write as ``write_code`` does. Its thread has ended when this is left, by a cancellation, too."""
    is_over = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        try:
            await asyncio.wrap_future(pool.submit(write_code, pid, patches, is_over.is_set))
        finally:
            is_over.set()


_STEP_BACK = f"""{inspect.getsource(clock_code)}
pid, words = int(sys.argv[1]), sys.argv[2:]
patches = [(int(words[i]), words[i + 1], words[i + 2]) for i in range(0, len(words), 3)]
back = [(address, after, before) for address, before, after in patches]

def is_ahead(one):
    try:
        return has_code(one, patches)
    except PermissionError:
        if one == pid:
            raise
        return False

while ahead := [one for one in family(pid) if is_ahead(one)]:
    for one in ahead:
        with suppress(ProcessLookupError, FileNotFoundError):  # it has ended
            write_code(one, back)
"""
"""Program of the child that undoes it, in what was forked under it as well."""


def _patches(pid: int) -> Iterator[Patch]:
    """Changes of the code of a process.

    Raises:
        NoEffect: this machine, or that process, has not what is changed.
    """
    if platform.machine() != "x86_64":
        raise NoEffect(f"the clock of one process cannot be moved on {platform.machine()}, only on x86_64")
    own, theirs = _vdso("self"), _vdso(pid)
    image = ctypes.string_at(own.start, len(own))
    symbols = dict(_symbols(image))
    for name, (begin, end) in _CODE.items():
        offset, size = symbols.get(name, (0, 0))
        code = bytes.fromhex(begin) + struct.pack("<i", STEP_S) + bytes.fromhex(end)
        if size < len(code):
            raise NoEffect(f"this kernel has no {name.decode()} of its own")
        yield theirs.start + offset, image[offset : offset + len(code)].hex(), code.hex()


def _vdso(pid: int | str) -> range:
    """Addresses of the page in a process."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            if line.endswith("[vdso]"):
                begin, end = (int(word, 16) for word in line.split()[0].split("-"))
                return range(begin, end)
    raise NoEffect(f"process {pid} has no vDSO, or is another user's")


def _symbols(image: bytes) -> Iterator[tuple[bytes, tuple[int, int]]]:
    """Offset and size of each function of an ELF image of 64 bits."""
    (table,) = struct.unpack_from("<Q", image, 0x28)
    entry_size, count = struct.unpack_from("<HH", image, 0x3A)
    sections = [struct.unpack_from("<IIQQQQIIQQ", image, table + index * entry_size) for index in range(count)]
    for _, kind, _, _, begin, size, link, *_ in sections:
        if kind == 11:  # SHT_DYNSYM
            names = sections[link][4]
            for place in range(begin, begin + size, 24):
                name, _, _, _, value, length = struct.unpack_from("<IBBHQQ", image, place)
                end = image.index(b"\0", names + name)
                yield image[names + name : end], (value, length)
