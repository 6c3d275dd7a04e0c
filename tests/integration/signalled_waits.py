"""Counts signals of a condition that a wait with a simulated deadline misses; prints the number.

A thread waits, again and again, until a tenth of a simulated second has passed or another thread
has set a flag and signalled the condition. If the wait says that its time is over, the flag must
not be set: both threads hold the mutex while they look at it.
"""

from __future__ import annotations

import ctypes
import errno
import sys
import threading
import time

LIBC = ctypes.CDLL(None)


class Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


# Larger than those of any architecture, and initialized to zero.
condition, mutex = (ctypes.create_string_buffer(128) for _ in range(2))
flag = False
missed = 0
done = threading.Event()


def wait() -> None:
    """Count how often the time is over although the flag is set."""
    global flag, missed
    while not done.is_set():
        LIBC.pthread_mutex_lock(mutex)
        deadline = Timespec()
        LIBC.clock_gettime(time.CLOCK_REALTIME, ctypes.byref(deadline))
        later = deadline.nanoseconds + 10**8
        deadline.seconds += later // 10**9
        deadline.nanoseconds = later % 10**9
        if not flag:
            code = LIBC.pthread_cond_timedwait(condition, mutex, ctypes.byref(deadline))
            missed += flag and code == errno.ETIMEDOUT
        flag = False
        LIBC.pthread_mutex_unlock(mutex)


def main(number: int) -> None:
    """Signal `number` times."""
    global flag
    waiter = threading.Thread(target=wait)
    waiter.start()
    for _ in range(number):
        LIBC.pthread_mutex_lock(mutex)
        flag = True
        LIBC.pthread_cond_signal(condition)
        LIBC.pthread_mutex_unlock(mutex)
        LIBC.usleep(100_000)
    done.set()
    waiter.join()
    print(missed)


if __name__ == "__main__":
    main(int(sys.argv[1]))
