"""Runs as root on the hosts of a simulation: sets up the clock, submits jobs, and ends them.

The text of this file is sent to hosts, so it needs only Python 3.9 and its standard library.

Jobs do not sleep. A job's script announces itself in the named pipe `starts`, and then reads a line
from a pipe of its own, into which `drive` writes when the simulated clock shows the job's start
plus its run time. So the delay of a job's start does not lengthen the job, an idle job costs
nothing, and the clock may change its rate.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import heapq
import json
import os
import pwd
import queue
import select
import shutil
import struct
import subprocess
import sys
import threading
import time
from typing import Any

HOME = "/var/lib/slurm-harness-simulation"
# The names of libfaketime's semaphore and shared memory.
_NAME = "slurm-harness"
_UNITS = ("slurmctld", "slurmdbd", "slurmd", "slurmd@")
_DROP_IN = "simulated-clock.conf"
_SECOND = 10**9
# How often the progress is reported, and the job queue read, in real seconds.
_REPORT_EVERY = 1.0
_SUBMITTERS = 4
# Reasons of pending jobs that no passage of time removes: squeue(1), JOB REASON CODES.
_FOREVER = {
    "DependencyNeverSatisfied",
    "JobHeldAdmin",
    "JobHeldUser",
    "BadConstraints",
    "PartitionNodeLimit",
    "PartitionTimeLimit",
    "InvalidAccount",
    "InvalidQOS",
    "AssociationJobLimit",
}
# Without a running job and without a change, simulated seconds after which the rest waits forever.
_STANDSTILL = 6 * 3600


class Clock:
    """The simulated clock: `epoch` + (CLOCK_MONOTONIC - `began`) * `rate`; in nanoseconds."""

    def __init__(self, epoch: int, began: int, rate: float) -> None:
        self.epoch, self.began, self.rate = epoch, began, rate

    def now(self) -> float:
        """Return the simulated time in seconds since 1970."""
        return (self.epoch + (time.monotonic_ns() - self.began) * self.rate) / _SECOND

    def real_seconds_until(self, moment: float) -> float:
        """Return how long it takes until the clock shows a time; negative if it has passed."""
        return (moment - self.now()) / self.rate


def facts() -> dict[str, Any]:
    """Return the clocks of this host, at the same moment."""
    return {
        "monotonic": time.monotonic_ns(),
        "real": time.time_ns(),
        "raw": time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW),
        "boot": time.clock_gettime_ns(time.CLOCK_BOOTTIME),
        "boot_id": open("/proc/sys/kernel/random/boot_id").read().strip(),
    }


def set_clock(began: dict[str, int], epoch: int, rate: float) -> None:
    """Let Slurm's daemons on this host use the simulated clock when they start next."""
    clear_clock()
    environment = _faketime(began, epoch, rate)
    for unit in _UNITS:
        directory = f"/run/systemd/system/{unit}.service.d"
        os.makedirs(directory, exist_ok=True)
        lines = "".join(f'Environment="{name}={value}"\n' for name, value in environment.items())
        with open(f"{directory}/{_DROP_IN}", "w") as file:
            file.write(f"[Service]\n{lines}")
    os.makedirs(HOME, exist_ok=True)
    with open("/run/simulated-clock.json", "w") as file:
        json.dump(environment, file)
    subprocess.run(["systemctl", "daemon-reload"], check=True)


def clear_clock() -> None:
    """Let Slurm's daemons on this host use the real clock when they start next."""
    for unit in _UNITS:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"/run/systemd/system/{unit}.service.d/{_DROP_IN}")
    for path in (f"/dev/shm/sem.faketime_sem_{_NAME}", f"/dev/shm/faketime_shm_{_NAME}"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def _faketime(began: dict[str, int], epoch: int, rate: float) -> dict[str, str]:
    """Create what all processes with libfaketime share; return their environment."""
    library = glob.glob("/usr/lib/*/faketime/libfaketime.so.1")[0]
    libc = ctypes.CDLL(None, use_errno=True)
    libc.sem_open.restype = ctypes.c_void_p
    mask = os.umask(0)
    semaphore = libc.sem_open(f"/faketime_sem_{_NAME}".encode(), os.O_CREAT | os.O_EXCL, 0o666, 1)
    if semaphore is None:
        raise OSError(ctypes.get_errno(), "sem_open")
    starts = b"".join(
        struct.pack("<qq", *divmod(began[clock], _SECOND))
        for clock in ("real", "monotonic", "raw", "boot")
    )
    with open(f"/dev/shm/faketime_shm_{_NAME}", "wb") as file:
        file.write(struct.pack("<QQ", 0, 0) + starts + bytes(64))
    os.umask(mask)
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(epoch // _SECOND))
    return {
        "LD_PRELOAD": library,
        "FAKETIME": f"@{when} x{rate:g}",
        "FAKETIME_DONT_RESET": "1",
        "NO_FAKE_STAT": "1",
        "FAKETIME_CACHE_DURATION": "1000000",
        "FAKETIME_SHARED": f"/faketime_sem_{_NAME} /faketime_shm_{_NAME}",
    }


def skew(began: int, epoch: int, rate: float) -> float:
    """Return by how many simulated seconds the clock of a new process differs from the formula."""
    clock = Clock(epoch, began, rate)
    with open("/run/simulated-clock.json") as file:
        environment = {**os.environ, **json.load(file)}
    before = clock.now()
    answer = subprocess.run(
        ["date", "+%s.%N"], env=environment, capture_output=True, text=True, check=True
    ).stdout
    after = clock.now()
    return max(0.0, before - float(answer), float(answer) - after)


def wipe(patterns: list[str]) -> None:
    """Remove what is in directories; the directories stay, with their owners and modes."""
    for directory in [path for pattern in patterns for path in glob.glob(pattern)]:
        for entry in [*os.scandir(directory)]:
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            else:
                os.unlink(entry.path)


class Driver:
    """Submits the jobs of a trace at their times, and ends them at theirs.

    `jobs` have: key, submit (simulated seconds from the beginning), user, options (of sbatch),
    after ([kind, key of an earlier job or its task]), run_times (seconds by task; "" if it is no
    array).
    """

    def __init__(self, request: dict[str, Any]) -> None:
        self.clock = Clock(request["epoch"], request["began"], request["rate"])
        self.jobs: list[dict[str, Any]] = request["jobs"]
        self.until = request["seconds"]
        self.ids: dict[str, str] = {}
        self.refused: dict[str, str] = {}
        self.late: list[float] = []
        self.done = 0
        self.answered = threading.Condition()
        self.todo: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self.run_times = {
            f"{job['key']}.{task}": seconds
            for job in self.jobs
            for task, seconds in job["run_times"].items()
        }
        self.started: dict[str, float] = {}
        self.ends: list[tuple[float, str]] = []
        self.buffer = b""
        self.counts: dict[str, int] = {}
        self.changed = 0.0
        self.begin = 0.0
        self.real_begin = self.looked = self.last_answer = time.monotonic()
        self.starts = -1

    def drive(self) -> None:
        """Run until all jobs have ended, none can start any more, or the time is over."""
        self._make_pipes()
        threads = [
            threading.Thread(target=self._submit_all, daemon=True) for _ in range(_SUBMITTERS)
        ]
        for thread in threads:
            thread.start()
        watcher = threading.Thread(target=self._watch, daemon=True)
        self.begin = float(int(self.clock.now() + 2 * self.clock.rate) + 1)
        self.changed = self.begin
        self._report("begin", begin=self.begin)
        self.real_begin = time.monotonic()
        watcher.start()
        pending = [*reversed(self.jobs)]
        reported = time.monotonic()
        while not self._finished(bool(pending)):
            while pending and self.clock.now() >= self.begin + pending[-1]["submit"]:
                self.todo.put(pending.pop())
            self._end_jobs()
            if time.monotonic() - reported >= _REPORT_EVERY:
                reported = time.monotonic()
                self._report("progress", **self._progress())
            self._wait(pending)
        for _ in threads:
            self.todo.put(None)
        for thread in threads:
            thread.join()
        self._report("progress", **self._progress())
        self._report("end", end=self.clock.now(), ids=self.ids, refused=self.refused)

    def _make_pipes(self) -> None:
        shutil.rmtree(f"{HOME}/ends", ignore_errors=True)
        os.makedirs(f"{HOME}/ends", exist_ok=True)
        os.chmod(HOME, 0o755)
        os.umask(0)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{HOME}/starts")
        for name in ("starts", *(f"ends/{key}" for key in self.run_times)):
            os.mkfifo(f"{HOME}/{name}", 0o666)
        os.umask(0o022)
        self.starts = os.open(f"{HOME}/starts", os.O_RDWR | os.O_NONBLOCK)

    def _wait(self, pending: list[dict[str, Any]]) -> None:
        """Wait until something is due, or a job starts."""
        moments = [self.begin + self.until]
        if pending:
            moments.append(self.begin + pending[-1]["submit"])
        if self.ends:
            moments.append(self.ends[0][0])
        seconds = self.clock.real_seconds_until(min(moments))
        ready, _, _ = select.select([self.starts], [], [], max(0.0, min(seconds, 0.2)))
        if ready:
            self._read_starts()

    def _read_starts(self) -> None:
        self.buffer += os.read(self.starts, 65536)
        *lines, self.buffer = self.buffer.split(b"\n")
        for line in lines:
            try:
                key, start = line.decode().split(" ")
                run_time = self.run_times[key]
            except (KeyError, ValueError):
                continue  # users can write to the pipe
            # Slurm sets the job's start since 22.05; before, the script's start stands for it.
            moment = float(start or 0) or self.clock.now()
            self.started[key] = moment
            heapq.heappush(self.ends, (moment + run_time, key))

    def _end_jobs(self) -> None:
        while self.ends and self.ends[0][0] <= self.clock.now():
            end, key = heapq.heappop(self.ends)
            if self.started[key] + self.run_times[key] != end:
                continue  # it was requeued, and has started again
            # Nobody reads if the job was killed.
            with contextlib.suppress(OSError):
                pipe = os.open(f"{HOME}/ends/{key}", os.O_WRONLY | os.O_NONBLOCK)
                os.write(pipe, b"\n")
                os.close(pipe)

    def _submit_all(self) -> None:
        while (job := self.todo.get()) is not None:
            self._submit(job)

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
            self.late.append(self.clock.now() - self.begin - job["submit"])
            if answer.returncode == 0:
                self.ids[job["key"]] = answer.stdout.strip().split(";")[0]
            else:
                self.refused[job["key"]] = answer.stderr.strip()[-500:]
            self.answered.notify_all()

    def _dependency(self, job: dict[str, Any]) -> list[str]:
        """Return the dependency with the ids of the jobs; one that was refused is left out."""
        parts = []
        for kind, earlier, task in job["after"]:
            with self.answered:
                self.answered.wait_for(lambda: earlier in self.ids or earlier in self.refused)
            if earlier in self.ids:
                parts.append(f"{kind}:{self.ids[earlier]}{'_' + task if task else ''}")
        return [f"--dependency={','.join(parts)}"] if parts else []

    def _watch(self) -> None:
        """Count the jobs that have not ended, by state and reason, while the simulation runs."""
        while True:
            answer = subprocess.run(
                ["squeue", "--noheader", "--all", "--array", "--format=%T %r"],
                capture_output=True,
                text=True,
                check=False,
            )
            if answer.returncode == 0:
                counts: dict[str, int] = {}
                for line in answer.stdout.splitlines():
                    counts[line] = counts.get(line, 0) + 1
                if counts != self.counts:
                    self.changed = self.clock.now()
                self.counts = counts
                self.looked = time.monotonic()
            time.sleep(_REPORT_EVERY)

    def _finished(self, submitting: bool) -> bool:
        now = self.clock.now()
        if now >= self.begin + self.until:
            return True
        answers = len(self.ids) + len(self.refused)
        if submitting or answers < len(self.jobs):
            self.last_answer = time.monotonic()
            return False
        if self.looked < self.last_answer + _REPORT_EVERY:
            return False
        active = self.counts
        if any(not line.startswith("PENDING ") for line in active):
            return False
        reasons = {line.partition(" ")[2] for line in active}
        return reasons <= _FOREVER or now - self.changed > _STANDSTILL

    def _progress(self) -> dict[str, Any]:
        active = self.counts
        pending = sum(count for line, count in active.items() if line.startswith("PENDING "))
        running = sum(active.values()) - pending
        answered = {*self.ids, *self.refused}
        accepted = sum(len(job["run_times"]) for job in self.jobs if job["key"] in answered)
        return {
            "simulated": self.clock.now() - self.begin,
            "real": time.monotonic() - self.real_begin,
            "rate": self.clock.rate,
            "pending": pending,
            "running": running,
            "done": max(0, accepted - pending - running),
            "jobs": len(self.run_times),
        }

    def _report(self, kind: str, **content: Any) -> None:
        print(json.dumps({"kind": kind, **content}), flush=True)


def _script(key: str) -> str:
    """Return the batch script of a job."""
    return f"""#!/bin/sh
key={key}.$SLURM_ARRAY_TASK_ID
exec 3<> {HOME}/ends/$key
echo "$key $SLURM_JOB_START_TIME" > {HOME}/starts
read -r _ <&3
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
