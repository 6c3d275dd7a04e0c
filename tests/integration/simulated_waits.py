"""Runs on a host, with the library of the simulated clock: waits in every way that Slurm uses.

Prints, for each way, how many simulated seconds a wait of WAIT seconds took at least and at most,
and how many real ones. /proc/uptime is not simulated; a busy machine may stop the program between
two looks at the clocks.
"""

from __future__ import annotations

import ctypes
import json
import select
import socket
import time
from collections.abc import Callable
from pathlib import Path

WAIT = 20.0
_libc = ctypes.CDLL("libc.so.6", use_errno=True)


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def uptime() -> float:
    return float(Path("/proc/uptime").read_text().split()[0])


def wait_for_condition(_: socket.socket) -> None:
    condition, mutex = ctypes.create_string_buffer(256), ctypes.create_string_buffer(256)
    deadline = _Timespec(int(time.time() + WAIT) + 1, 0)
    _libc.pthread_mutex_lock(mutex)
    timedwait = ctypes.CDLL(None).pthread_cond_timedwait
    while timedwait(condition, mutex, ctypes.byref(deadline)) == 0:
        pass


def wait_with_poll(silent: socket.socket) -> None:
    poll = select.poll()
    poll.register(silent, select.POLLIN)
    poll.poll(WAIT * 1000)


def wait_with_epoll(silent: socket.socket) -> None:
    with select.epoll() as epoll:
        epoll.register(silent, select.EPOLLIN)
        epoll.poll(WAIT)


# Each gets a socket from which there is never anything to read.
WAYS: dict[str, Callable[[socket.socket], object]] = {
    "sleep": lambda _: ctypes.CDLL(None).sleep(int(WAIT)),
    "usleep": lambda _: ctypes.CDLL(None).usleep(int(WAIT * 1e6)),
    "nanosleep": lambda _: time.sleep(WAIT),
    "select": lambda silent: select.select([silent], [], [], WAIT),
    "poll": wait_with_poll,
    "epoll_wait": wait_with_epoll,
    "pthread_cond_timedwait": wait_for_condition,
}


def main() -> None:
    found = {}
    silent, _peer = socket.socketpair()
    for name, wait in WAYS.items():
        first, real, last = time.time(), uptime(), time.time()
        wait(silent)
        before, end, after = time.time(), uptime(), time.time()
        found[name] = (before - last, after - first, end - real)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
