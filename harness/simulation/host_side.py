"""Runs as root on the hosts of a simulation: sets up the clock, submits jobs, and ends them.

The text of this file is sent to hosts, so it needs only Python 3.9 and its standard library.

Jobs do not sleep. A job's script announces itself in the named pipe `news`, and then reads a line
from a pipe of its own, into which `drive` writes when the simulated clock shows the job's start
plus its run time. So the delay of a job's start does not lengthen the job, an idle job costs
nothing, and the clock may change its rate. The time in which a job is suspended does not count:
Slurm sends SIGTSTP before it stops a job, and SIGCONT when the job goes on, and the script reports
both.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import heapq
import itertools
import json
import math
import mmap
import os
import pwd
import queue
import select
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

HOME = "/var/lib/slurm-harness-simulation"
_CLOCK = f"{HOME}/clock"
_LIBRARY = "/usr/local/lib/slurm-harness/simulated_clock.so"
_UNITS = ("slurmctld", "slurmdbd", "slurmd", "slurmd@")
_DROP_IN = "simulated-clock.conf"
_SECOND = 10**9
# When a rate expires that holds until it is changed, in nanoseconds.
_NEVER = 2**62
# How often progress is reported and the job queue is read, in real seconds.
_REPORT_EVERY = 1.0
# For how many real seconds squeue may fail; slurmctld may be busy, or restarted by the user.
_UNANSWERED = 300
_SUBMITTERS = 4
# The shortest and longest time for which the driver waits, in real seconds.
_SHORTEST, _LONGEST = 0.001, 0.2
# In real seconds: how often the governor looks, how far it looks ahead, and how long the rate stays
# low after work. A load above _BUSY CPUs counts as work.
_LOOK_EVERY = 0.004
_AHEAD = 0.02
_BUSY = 0.3
_REST = 0.02
# In real seconds: the time constant of the load that the governor sees, and when an answer is slow.
_RECENT = 0.1
_SLOW_ANSWER = 0.2
# After this many simulated seconds without a look of the governor, the rate falls to 1.
_FARTHEST = 0.6
# Reasons of pending jobs that do not go away with time: squeue(1), JOB REASON CODES.
_FOREVER = {
    "DependencyNeverSatisfied",
    "JobHeldAdmin",
    "JobHeldUser",
    "BadConstraints",
    "PartitionNodeLimit",
    "PartitionTimeLimit",
    "InvalidAccount",
    "InvalidQOS",
}
# Simulated seconds without a running job or any change, after which the other jobs wait forever.
_STANDSTILL = 6 * 3600
# The longest time, in simulated seconds, for which daemons idle before the beginning.
_LONGEST_IDLE = 3600
_GOLDEN_RATIO = (math.sqrt(5) - 1) / 2


class _Page(ctypes.Structure):
    """What images/simulated_clock.c reads; no field is ever seen half written."""

    _fields_ = (
        *(("sequence", ctypes.c_uint32), ("unused", ctypes.c_uint32)),
        *((name, ctypes.c_double) for name in ("rate", "top")),
        *((name, ctypes.c_int64) for name in ("began", "expires", "realtime", "monotonic")),
    )


class Clock:
    """The simulated clock that all processes of a simulation share, in a page of a file."""

    def __init__(self) -> None:
        with open(_CLOCK, "r+b") as file:
            self._page = _Page.from_buffer(mmap.mmap(file.fileno(), ctypes.sizeof(_Page)))
        self._lock = threading.Lock()

    def now(self) -> float:
        """Return the simulated time in seconds since 1970."""
        with self._lock:
            now: int = self._page.realtime + self._passed(time.monotonic_ns())
        return now / _SECOND

    def set_rate(self, rate: float, expires: int = _NEVER) -> None:
        """Set the rate for all processes; the clock neither stops nor jumps.

        When CLOCK_MONOTONIC is `expires`, in nanoseconds, the rate falls to 1.
        """
        page = self._page
        with self._lock:
            # While the sequence is odd, others wait: no process sees time go backwards.
            page.sequence += 1
            now = time.monotonic_ns()
            passed = self._passed(now)
            # This process may have lost its CPU since the caller looked at the time.
            page.rate, page.began, page.expires = rate, now, max(expires, now)
            page.realtime += passed
            page.monotonic += passed
            page.sequence += 1

    def _passed(self, now: int) -> int:
        """Return how much simulated time has passed since the rate was set."""
        page = self._page
        passed: int = now - page.began
        fast: int = min(passed, page.expires - page.began)
        return int(fast * page.rate) + passed - fast


def facts() -> dict[str, Any]:
    """Return what hosts must have in common to share a clock, and the times now."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        machine = file.read().strip()
    return {
        "machine": machine,
        "library": os.path.exists(_LIBRARY),
        "real": time.time_ns(),
        "monotonic": time.monotonic_ns(),
    }


def make_clock(epoch: int, rate: float, top: float) -> None:
    """Create the clock, which begins at `epoch`, in nanoseconds since 1970."""
    os.makedirs(HOME, exist_ok=True)
    os.chmod(HOME, 0o755)
    with open(f"{_CLOCK}.new", "wb") as file:
        now = time.monotonic_ns()
        file.write(bytes(_Page(0, 0, rate, top, now, _NEVER, epoch, now)))
    os.chmod(f"{_CLOCK}.new", 0o644)
    os.rename(f"{_CLOCK}.new", _CLOCK)


def use_clock() -> None:
    """Let Slurm's daemons on this host use the simulated clock when they start next."""
    for unit in _UNITS:
        directory = f"/run/systemd/system/{unit}.service.d"
        os.makedirs(directory, exist_ok=True)
        with open(f"{directory}/{_DROP_IN}", "w") as file:
            lines = (f'Environment="{name}={value}"' for name, value in ENVIRONMENT.items())
            file.write("\n".join(["[Service]", *lines, ""]))
    subprocess.run(["systemctl", "daemon-reload"], check=True)


ENVIRONMENT = {"LD_PRELOAD": _LIBRARY, "SIMULATED_CLOCK": _CLOCK}


def skew() -> float:
    """Return by how many simulated seconds the clock of a new process differs from the shared one.

    The time that the process needs to start does not count.
    """
    clock = Clock()
    before = clock.now()
    answer = subprocess.run(
        ["date", "+%s.%N"],
        env={**os.environ, **ENVIRONMENT},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return max(0.0, before - float(answer), float(answer) - clock.now())


def wipe(patterns: list[str]) -> None:
    """Remove what is in directories; the directories stay, with their owners and modes."""
    for directory in [path for pattern in patterns for path in glob.glob(pattern)]:
        for entry in [*os.scandir(directory)]:
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            else:
                os.unlink(entry.path)


def saved_version(path: str) -> int:
    """Return the protocol version of a file that slurmctld has saved."""
    with open(path, "rb") as file:
        return int(struct.unpack(">H", file.read(2))[0])


def save(path: str, content: str) -> None:
    """Write a file, in hexadecimal digits, that slurmctld loads when it starts."""
    with open(path, "wb") as file:
        file.write(bytes.fromhex(content))
    owner = os.stat(os.path.dirname(path))
    os.chown(path, owner.st_uid, owner.st_gid)


def stop_driving(pid: int) -> None:
    """Let a driver end the simulation now and report it; no effect if it has ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)


class Governor:
    """Changes the rate of the clock: `top` while nothing happens, at most `low` while Slurm works.

    Slurm does not work any faster than usual, so a fast clock would delay starts and ends of jobs.
    Slurm is at work while its daemons compute or wait for a CPU, until sbatch answers, just before
    a job is submitted or ends, and until the end is recorded. On a busy machine, work takes longer,
    because it waits for a CPU; the rate falls in proportion, but not below that of real time.

    A host sees only its own processes. Unless there is a `single_host`, the daemons are at work
    while any program of the machine is, and the end of a job on another host counts as recorded
    when the machine rests.
    """

    def __init__(self, clock: Clock, low: float, top: float, *, single_host: bool) -> None:
        self.clock, self.low, self.top = clock, low, top
        self._cpu_times = _cpu_times_of_host if single_host else _cpu_times_of_machine
        # The simulated time of the next event; since when each sbatch has not answered; and since
        # when each slurmstepd of an ended job, by process id, has not exited.
        self.next_event = 0.0
        self.submitting: dict[str, float] = {}
        self.ending: dict[int, float] = {}
        # For how many real seconds the clock was slower than `top`, by reason.
        self.slowed: dict[str, float] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._govern, daemon=True)

    def start(self) -> None:
        """Begin to govern, in the background."""
        if self.low < self.top:
            self._thread.start()

    def stop(self) -> None:
        """Let the clock run at `low` from now on."""
        if self.low < self.top:
            self._stopped.set()
            self._thread.join()
            self.clock.set_rate(self.low)

    def _govern(self) -> None:
        before, (usage, waiting) = time.monotonic(), self._cpu_times()
        busy_until, recent_usage, recent_waiting, work = before, 0.0, 0.0, ""
        while not self._stopped.wait(_LOOK_EVERY):
            moment, (usage_now, waiting_now) = time.monotonic(), self._cpu_times()
            passed = moment - before
            decay = math.exp(-passed / _RECENT)
            recent_usage = recent_usage * decay + usage_now - usage
            recent_waiting = recent_waiting * decay + waiting_now - waiting
            # A slurmstepd exits once slurmctld has confirmed that it recorded the end of the job.
            for process in [*self.ending]:
                if not os.path.exists(f"/proc/{process}"):
                    del self.ending[process]
            unanswered = [*self.submitting.values(), *self.ending.values()]
            if (usage_now - usage + waiting_now - waiting) / passed > _BUSY * 1e6 or unanswered:
                busy_until = moment + _REST
                work = "submitting" if self.submitting else "ending" if self.ending else "computing"
            before, usage, waiting = moment, usage_now, waiting_now
            near = self.next_event - self.clock.now() < self.top * _AHEAD
            rate = self.top
            if near or moment < busy_until:
                reason = work if moment < busy_until else "next event"
                self.slowed[reason] = self.slowed.get(reason, 0.0) + passed
                stretch = (recent_usage + recent_waiting) / max(recent_usage, 1.0)
                rate = max(1.0, float(int(self.low / max(1.0, stretch))))
            if moment - min(unanswered, default=moment) > _SLOW_ANSWER:
                rate = 1.0
            # If this process gets its CPU late, the clock must not run far in the meantime.
            self.clock.set_rate(rate, time.monotonic_ns() + int(_FARTHEST / rate * _SECOND))


def _cpu_times_of_host() -> tuple[int, int]:
    """Return for how many microseconds this host has computed, and waited for a CPU."""
    with open("/sys/fs/cgroup/cpu.stat") as file:
        usage = int(file.readline().split()[1])
    return usage, _waited("/sys/fs/cgroup/cpu.pressure")


def _cpu_times_of_machine() -> tuple[int, int]:
    """Return the same of all programs of the machine."""
    with open("/proc/stat") as file:
        user, nice, system, _, _, interrupts, soft_interrupts, *_ = map(
            int, file.readline().split()[1:]
        )
    ticks = user + nice + system + interrupts + soft_interrupts
    return ticks * 10**6 // os.sysconf("SC_CLK_TCK"), _waited("/proc/pressure/cpu")


def _waited(path: str) -> int:
    try:
        with open(path) as file:
            return int(file.readline().rpartition("total=")[2])
    except OSError:  # a kernel without pressure stall information
        return 0


class Driver:
    """Submits the jobs of a trace at their times, and ends them at theirs.

    `jobs` have: key, submit (simulated seconds from the beginning), user, options (of sbatch),
    after ([kind, key of an earlier job, its task]), run_times (seconds by task; "" if it is no
    array), and think: None, or how long after the end of the jobs in `after` it is submitted.
    `failures` have: nodes, when they fail, and for how long.
    """

    def __init__(self, request: dict[str, Any]) -> None:
        self.clock = Clock()
        self.governor = Governor(
            self.clock, request["low"], request["top"], single_host=request["single_host"]
        )
        self.jobs: list[dict[str, Any]] = request["jobs"]
        self.until = request["seconds"]
        self.repeat: int = request["repeat"]
        self.maintenance: list[list[float]] = request["maintenance"]
        self.failures: list[tuple[str, float, float]] = request["failures"]
        self.ids: dict[str, str] = {}
        self.refused: dict[str, str] = {}
        self.answered = threading.Condition()
        self.todo: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.problem: Exception | None = None
        self.run_times = {
            f"{job['key']}.{task}": seconds
            for job in self.jobs
            for task, seconds in job["run_times"].items()
        }
        # What to do, and when: a heap of moments, numbers, keys and functions.
        self.plan: list[tuple[float, int, str, Callable[[], None]]] = []
        self.numbers = itertools.count()
        # Jobs to submit after others have ended, by the names of those others, and their number.
        # `due` has when they were due, `gone` the jobs that the watcher has seen end.
        self.thinking: dict[str, list[dict[str, Any]]] = {}
        self.thinkers = 0
        self.due: dict[str, float] = {}
        self.gone: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.host = os.uname().nodename
        # When jobs end, the processes of their slurmstepds if they are on this host, and the
        # remaining run times of suspended jobs.
        self.ends: list[tuple[float, str]] = []
        self.slurmstepd_of: dict[str, int | None] = {}
        self.end_of: dict[str, float] = {}
        self.left: dict[str, float] = {}
        self.suspensions: dict[str, list[list[float | None]]] = {}
        self.buffer = b""
        self.counts: dict[str, int] = {}
        self.done = 0
        # For how many simulated seconds each job was seen pending, by reason.
        self.held: dict[str, dict[str, float]] = {}
        # When each job that still is was first seen COMPLETING, and the longest such time.
        self.completing: dict[str, float] = {}
        self.longest_completing = 0.0
        self.changed = 0.0
        self.begin = 0.0
        self.stopped = False
        self.real_begin = self.looked = self.last_answer = time.monotonic()
        self.news = -1

    def drive(self) -> None:
        """Run until all jobs have ended, none can start any more, or the time is over.

        SIGTERM ends it early; what was seen until then is reported.
        """
        signal.signal(signal.SIGTERM, self._stop)
        self._make_pipes()
        threads = [
            threading.Thread(target=self._run_tasks, daemon=True) for _ in range(_SUBMITTERS)
        ]
        for thread in threads:
            thread.start()
        watcher = threading.Thread(target=self._watch, daemon=True)
        self.clock.set_rate(self.governor.low)
        # Jobs submitted before the beginning were already running at that time.
        lead = max(0.0, *(-job["submit"] for job in self.jobs))
        earliest = self.clock.now() + 2 * self.governor.low + lead
        self.begin = begin(earliest, self.repeat, _configuration())
        self.changed = self.begin
        self._make_plan()
        self._reserve()
        self._report("begin", begin=self.begin, pid=os.getpid())
        self.real_begin = time.monotonic()
        watcher.start()
        reported = time.monotonic()
        self.governor.start()
        while not self._finished():
            self._do_what_is_due()
            self._end_jobs()
            if time.monotonic() - reported >= _REPORT_EVERY:
                reported = time.monotonic()
                self._report("progress", **self._progress())
            self._wait()
        for _ in threads:
            self.todo.put(None)
        for thread in threads:
            thread.join()
        self.governor.stop()
        self._report("progress", **self._progress())
        facts = {"refused": self.refused, "held": self.held, "due": self.due}
        facts |= {"suspensions": self.suspensions, "slowed": self.governor.slowed}
        facts["longest_completing"] = self.longest_completing
        self._report("end", end=self.clock.now(), **facts)

    def _make_plan(self) -> None:
        """Plan when jobs are submitted and nodes fail, except jobs whose users think first."""
        for job in self.jobs:
            if job["think"] is None:
                self._schedule(self.begin + job["submit"], job["key"], partial(self._submit, job))
                continue
            self.thinkers += 1
            job["awaited"] = {f"{key}.{task}" for _, key, task in job["after"]}
            job["after"] = []
            for name in job["awaited"]:
                self.thinking.setdefault(name, []).append(job)
        for nodes, begin, seconds in self.failures:
            down = ["State=DOWN", "Reason=simulated failure"]
            for at, change in ((begin, down), (begin + seconds, ["State=RESUME"])):
                update = partial(_scontrol, "update", f"NodeName={nodes}", *change)
                self._schedule(self.begin + at, f"{nodes} {at}", update)

    def _schedule(self, moment: float, key: str, do: Callable[[], None]) -> None:
        heapq.heappush(self.plan, (moment, next(self.numbers), key, do))

    def _do_what_is_due(self) -> None:
        if self.problem:
            raise self.problem
        while not self.gone.empty():
            self._release(self.gone.get())
        while self.plan and self.clock.now() >= self.plan[0][0]:
            _, _, key, do = heapq.heappop(self.plan)
            self.governor.submitting[key] = time.monotonic()
            self.todo.put(partial(self._run_task, key, do))

    def _release(self, name: str) -> None:
        """Plan the submission of jobs whose users waited for the end of a job."""
        for job in self.thinking.pop(name, ()):
            job["awaited"].discard(name)
            if not job["awaited"]:
                moment = self.clock.now() + job["think"]
                self.due[job["key"]] = moment - self.begin
                self.thinkers -= 1
                self._schedule(moment, job["key"], partial(self._submit, job))

    def _reserve(self) -> None:
        """Reserve all nodes for maintenance, at times that count from the beginning."""
        for number, (begin, seconds) in enumerate(self.maintenance, 1):
            facts = {
                "ReservationName": f"maintenance{number}",
                "StartTime": f"uts{int(self.begin + begin)}",
                "Duration": str(max(1, round(seconds / 60))),
                "Nodes": "ALL",
                "Users": "root",
                "Flags": "MAINT,IGNORE_JOBS",
            }
            _scontrol("create", "reservation", *(f"{key}={value}" for key, value in facts.items()))

    def _make_pipes(self) -> None:
        shutil.rmtree(f"{HOME}/ends", ignore_errors=True)
        os.makedirs(f"{HOME}/ends", exist_ok=True)
        os.chmod(HOME, 0o755)
        os.umask(0)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{HOME}/news")
        for name in ("news", *(f"ends/{key}" for key in self.run_times)):
            os.mkfifo(f"{HOME}/{name}", 0o666)
        os.umask(0o022)
        self.news = os.open(f"{HOME}/news", os.O_RDWR | os.O_NONBLOCK)

    def _wait(self) -> None:
        """Wait until something is due, or a job starts."""
        moments = [self.begin + self.until]
        if self.plan:
            moments.append(self.plan[0][0])
        if self.ends:
            moments.append(self.ends[0][0])
        self.governor.next_event = min(moments)
        # Assume the highest rate, because it can change in the meantime.
        seconds = (min(moments) - self.clock.now()) / self.governor.top
        ready, _, _ = select.select([self.news], [], [], max(_SHORTEST, min(seconds, _LONGEST)))
        if ready:
            self._read_news()

    def _read_news(self) -> None:
        self.buffer += os.read(self.news, 65536)
        *lines, self.buffer = self.buffer.split(b"\n")
        for line in lines:
            try:
                key, what, *facts = line.decode().split()
                host, process, *start = facts
                slurmstepd = int(process) if host == self.host else None
                run_time = self.run_times[key]
                # Slurm sets the job's start since 22.05; before, the script's start is used.
                moment = float(start[0]) if start else self.clock.now()
            except (KeyError, ValueError):
                continue  # users can write to the pipe
            if what == "started":
                self.left.pop(key, None)
                self.slurmstepd_of[key] = slurmstepd
                self._ends_at(key, moment + run_time)
            elif what == "suspended" and key in self.end_of:
                self.left[key] = self.end_of.pop(key) - moment
                self.suspensions.setdefault(key, []).append([moment - self.begin, None])
            elif what == "resumed" and key in self.left:
                self._ends_at(key, moment + self.left.pop(key))
                self.suspensions[key][-1][1] = moment - self.begin

    def _ends_at(self, key: str, moment: float) -> None:
        self.end_of[key] = moment
        heapq.heappush(self.ends, (moment, key))

    def _end_jobs(self) -> None:
        while self.ends and self.ends[0][0] <= self.clock.now():
            end, key = heapq.heappop(self.ends)
            if self.end_of.get(key) != end:
                continue  # it was suspended, or requeued and has started again
            del self.end_of[key]
            # Nobody reads if the job was killed.
            with contextlib.suppress(OSError):
                pipe = os.open(f"{HOME}/ends/{key}", os.O_WRONLY | os.O_NONBLOCK)
                os.write(pipe, b"\n")
                os.close(pipe)
                if slurmstepd := self.slurmstepd_of[key]:
                    self.governor.ending[slurmstepd] = time.monotonic()
                self._release(key)

    def _run_tasks(self) -> None:
        try:
            while (do := self.todo.get()) is not None:
                do()
        except Exception as error:
            self.problem = error

    def _run_task(self, key: str, do: Callable[[], None]) -> None:
        """Run a task, and note that slurmctld has answered it."""
        do()
        self.governor.submitting.pop(key, None)

    def _submit(self, job: dict[str, Any]) -> None:
        account = pwd.getpwnam(job["user"])
        dependency = self._dependency(job)
        command = ["sbatch", "--parsable", *dependency, *job["options"]]
        answer = subprocess.run(
            command,
            input=_script(job["key"]),
            capture_output=True,
            text=True,
            user=account.pw_uid,
            group=account.pw_gid,
            extra_groups=os.getgrouplist(job["user"], account.pw_gid),
            cwd="/",
            env={
                "PATH": "/usr/local/bin:/usr/bin:/bin",
                "HOME": account.pw_dir,
                "USER": job["user"],
                "LOGNAME": job["user"],
                "SHELL": "/bin/sh",
            },
            check=False,
        )
        with self.answered:
            if answer.returncode == 0:
                self.ids[job["key"]] = answer.stdout.strip().split(";")[0]
            else:
                self.refused[job["key"]] = answer.stderr.strip()[-500:]
            self.answered.notify_all()

    def _dependency(self, job: dict[str, Any]) -> list[str]:
        """Return the dependency with the ids of the jobs; one that was refused is left out."""
        needed = {earlier for _, earlier, _ in job["after"]}
        with self.answered:
            self.answered.wait_for(lambda: needed <= {*self.ids, *self.refused})
        parts = [
            f"{kind}:{self.ids[earlier]}{'_' + task if task else ''}"
            for kind, earlier, task in job["after"]
            if earlier in self.ids
        ]
        return [f"--dependency={','.join(parts)}"] if parts else []

    def _watch(self) -> None:
        """Count the jobs that have not ended, by state and reason, while the simulation runs."""
        before = self.clock.now()
        looked = time.monotonic()
        while True:
            answered = {*self.ids, *self.refused}
            answer = subprocess.run(
                ["squeue", "--noheader", "--all", "--array", "--format=%T %r|%j|%K"],
                capture_output=True,
                text=True,
                check=False,
            )
            if answer.returncode == 0:
                now = self.clock.now()
                lines = [line.split("|") for line in answer.stdout.splitlines()]
                names = self._count([line for line in lines if len(line) == 3], now, now - before)
                accepted = [name for name in self.run_times if _key_of(name) in answered]
                self.done = sum(name not in names for name in accepted)
                for name in [*self.thinking]:
                    if name not in names and _key_of(name) in answered:
                        self.gone.put(name)
                before, self.looked = now, time.monotonic()
                looked = self.looked
            elif time.monotonic() - looked > _UNANSWERED:
                self.problem = RuntimeError(f"squeue: {answer.stderr.strip()[-500:]}")
                return
            time.sleep(_REPORT_EVERY)

    def _count(self, lines: list[list[str]], now: float, passed: float) -> set[str]:
        """Count jobs that have not ended, and return their names."""
        counts: dict[str, int] = {}
        completing: dict[str, float] = {}
        names = set()
        for state, key, task in lines:
            name = f"{key}.{'' if task == 'N/A' else task}"
            names.add(name)
            counts[state] = counts.get(state, 0) + 1
            if state.startswith("PENDING "):
                held = self.held.setdefault(name, {})
                reason = state.partition(" ")[2]
                held[reason] = held.get(reason, 0.0) + passed
            if state.startswith("COMPLETING "):
                completing[name] = self.completing.get(name, now)
                longest = now - completing[name]
                self.longest_completing = max(self.longest_completing, longest)
        self.completing = completing
        if counts != self.counts:
            self.changed = now
        self.counts = counts
        return names

    def _stop(self, *_: object) -> None:
        self.stopped = True

    def _finished(self) -> bool:
        now = self.clock.now()
        if self.stopped or now >= self.begin + self.until:
            return True
        answers = len(self.ids) + len(self.refused)
        if answers < len(self.jobs) - self.thinkers or not self.gone.empty():
            self.last_answer = time.monotonic()
            return False
        if self.looked < self.last_answer + _REPORT_EVERY:
            return False
        active = self.counts
        if any(not line.startswith("PENDING ") for line in active):
            return False
        reasons = {line.partition(" ")[2] for line in active}
        if reasons <= _FOREVER:
            return True
        # While nodes are reserved or have failed, jobs have a reason to wait.
        outages = [begin + seconds for begin, seconds in self.maintenance]
        outages += [begin + seconds for _, begin, seconds in self.failures]
        settled = self.begin + max(outages, default=0.0)
        return now - max(self.changed, settled) > _STANDSTILL

    def _progress(self) -> dict[str, Any]:
        active = self.counts
        pending = sum(count for line, count in active.items() if line.startswith("PENDING "))
        running = sum(active.values()) - pending
        return {
            "simulated": max(0.0, self.clock.now() - self.begin),
            "real": time.monotonic() - self.real_begin,
            "pending": pending,
            "running": running,
            "done": self.done,
            "jobs": len(self.run_times),
        }

    def _report(self, kind: str, **content: Any) -> None:
        print(json.dumps({"kind": kind, **content}), flush=True)


def _configuration() -> dict[str, str]:
    """Return what `scontrol show config` prints."""
    command = ["scontrol", "show", "config"]
    answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    lines = (line.partition("=") for line in answer.splitlines())
    return {key.strip(): value.strip() for key, _, value in lines}


def begin(earliest: float, repeat: int, facts: dict[str, str]) -> float:
    """Return when a repeat begins: each at a different point between two usage calculations.

    slurmctld calculates fair-share usage when it starts, and then in intervals of
    PriorityCalcPeriod; until the next calculation, the user with the least usage comes first. On a
    real cluster, a trace begins at any moment of this interval. So that the spread between repeats
    shows what that changes, their moments are spread evenly, however many repeats there are: they
    follow the golden ratio. Policies are compared at the same moments.

    `facts` is what `scontrol show config` prints; times are in seconds since 1970.
    """
    started = time.mktime(time.strptime(facts["BOOT_TIME"], "%Y-%m-%dT%H:%M:%S"))
    period = _seconds_of(facts.get("PriorityCalcPeriod", "00:05:00"))
    first = started + min(period, _LONGEST_IDLE) * (repeat * _GOLDEN_RATIO % 1)
    return float(int(first + math.ceil(max(0.0, earliest - first) / period) * period))


def _seconds_of(text: str) -> int:
    """Return the seconds of a duration as Slurm prints it.

    >>> _seconds_of("1-00:05:00")
    86700
    """
    days, _, clock = text.rpartition("-")
    hours, minutes, seconds = map(int, clock.split(":"))
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


def _scontrol(*words: str) -> None:
    subprocess.run(["scontrol", *words], check=True, stdout=sys.stderr)


def _key_of(name: str) -> str:
    return name.partition(".")[0]


def _script(key: str) -> str:
    """Return the batch script of a job."""
    return f"""#!/bin/sh
key={key}.$SLURM_ARRAY_TASK_ID
read -r host < /etc/hostname
trap 'echo "$key suspended $host $PPID" > {HOME}/news' TSTP
trap 'echo "$key resumed $host $PPID" > {HOME}/news' CONT
exec 3<> {HOME}/ends/$key
echo "$key started $host $PPID $SLURM_JOB_START_TIME" > {HOME}/news
until read -r _ <&3; do :; done
"""


def main() -> None:
    """Execute a request from standard input."""
    request = json.load(sys.stdin)
    verb = request.pop("verb")
    if verb == "drive":
        Driver(request).drive()
    else:
        print(json.dumps(globals()[verb](**request)))


if __name__ == "__main__":
    main()
