"""What pytest-xdist starts as the interpreter of a process: it has a fork of the collected tests made, and outlives it.

``python -S -E collected_client.py <name of the socket> <arguments of an interpreter>``

Without a server, for example since a module ends the process that imports it, it becomes that interpreter.
"""

import os
import signal
import socket
import sys


def main() -> None:
    """The fork gets the standard files; both ends of the channel tell when the other one has ended."""
    name, *arguments = sys.argv[1:]
    channel = socket.socket(socket.AF_UNIX)
    try:
        channel.connect(f"\0{name}")
        socket.send_fds(channel, [b"1"], [0, 1, 2])
        begun = channel.recv(1)
    except OSError:
        begun = b""
    if not begun:
        print("pytest-xdist: this process imports the tests itself", file=sys.stderr)
        os.execv(sys.executable, [sys.executable, *arguments])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the fork has it, too, and ends in its own way
    os.close(0)
    os.close(1)  # so that its end is seen at once
    channel.recv(1)


if __name__ == "__main__":
    main()
