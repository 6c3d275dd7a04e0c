"""The clock that all processes of a simulation share, on a host."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import lifecycle, providers, rundir
from harness.open_run import OpenRun
from harness.simulation import host_side
from support import SCENARIOS, Harness

WAITS = Path(__file__).with_name("simulated_waits.py")
SIGNALS = Path(__file__).with_name("signalled_waits.py")
WAIT = 20.0
# Sets the clock, and changes its rate after a while.
PROGRAM = """
make_clock(1_900_000_000 * _SECOND, {rate}, {top})
clock = Clock()
environment = dict(os.environ, **ENVIRONMENT)
waiting = subprocess.Popen(
    ["python3", "-c", {waits!r}], env=environment, stdout=subprocess.PIPE, text=True
)
while waiting.poll() is None and {changes}:
    for rate in ({rate}, {top}):
        began, before = time.monotonic(), clock.now()
        clock.set_rate(rate)
        assert 0 <= clock.now() - before <= {top} * (time.monotonic() - began) + 0.001
        time.sleep(0.3)
print(waiting.communicate()[0])
"""
# Looks at the simulated time, again and again; prints how much it changes at most and at least.
READS = """
import time
first = before = time.time()
longest = shortest = 0.0
while before - first < 100:
    now = time.time()
    longest, shortest = max(longest, now - before), min(shortest, now - before)
    before = now
print([longest, shortest])
"""


@pytest.fixture(scope="module")
def host(harness: Harness, runs: Path) -> Iterator[OpenRun]:
    """A host without daemons."""
    done = harness("up", SCENARIOS / "single-node.yml")
    run = lifecycle.open_run(rundir.find(runs, "single-node"), providers.get("docker"), print)
    try:
        assert done.returncode == 0, done.stderr
        yield run
    finally:
        lifecycle.down(run)


def waits(
    run: OpenRun, rate: float, top: float, *, changes: bool
) -> dict[str, tuple[float, float, float]]:
    """Return the simulated seconds of each wait, at least and at most, and the real ones."""
    facts = {"rate": rate, "top": top, "waits": WAITS.read_text(), "changes": changes}
    answer = printed(run, PROGRAM.format(**facts))
    return {name: tuple(times) for name, times in json.loads(answer).items()}


def printed(run: OpenRun, program: str) -> str:
    """Return what a program prints on the host; it can use all that is in host_side.py."""
    text = source_of_host_side() + program
    return run.ssh.run(run.plan.hosts[0].name, ["python3", "-"], stdin=text, timeout=600).stdout


@pytest.mark.core
def test_waits_are_as_long_as_the_clock_says(host: OpenRun) -> None:
    for name, (least, most, real) in waits(host, 20, 20, changes=False).items():
        assert least >= WAIT - 0.1, name
        # /proc/uptime counts hundredths of a second.
        assert least / 20 - 0.02 <= real <= most / 20 + 0.02, name


@pytest.mark.core
def test_waits_follow_a_rate_that_changes(host: OpenRun) -> None:
    for name, (least, _, real) in waits(host, 1, 50, changes=True).items():
        assert least >= WAIT - 0.1, name
        # At the low rate it would take 20 s: no process sleeps through a change of the rate.
        assert real < WAIT / 2, name


def test_a_wait_for_a_condition_misses_no_signal(host: OpenRun) -> None:
    """Even if it comes while the wait looks at the clock, which it does every millisecond."""
    program = """
make_clock(1_900_000_000 * _SECOND, 1, 100)
Clock().set_rate(20)
command = ["python3", "-c", {program!r}, "4000"]
environment = dict(os.environ, **ENVIRONMENT)
print(subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True).stdout)
"""
    assert int(printed(host, program.format(program=SIGNALS.read_text()))) == 0


def test_no_process_sees_a_clock_half_written(host: OpenRun) -> None:
    """Such a time is decades away: all timeouts are over, but no later time tells why."""
    program = """
make_clock(1_900_000_000 * _SECOND, 20, 100)
clock = Clock()
program = {program!r}
environment = dict(os.environ, **ENVIRONMENT)
reading = subprocess.Popen(
    ["python3", "-c", program], env=environment, stdout=subprocess.PIPE, text=True
)
while reading.poll() is None:
    for rate in (10, 20) * 500:
        clock.set_rate(rate)
print(reading.communicate()[0])
"""
    longest, shortest = json.loads(printed(host, program.format(program=READS)))
    # Of the simulated seconds between one look and the next.
    assert shortest >= 0
    assert longest < 3600


def test_a_rate_that_nobody_renews_expires(host: OpenRun) -> None:
    """So a simulation whose driver gets no CPU does not run far in the meantime."""
    program = """
make_clock(1_900_000_000 * _SECOND, 1, 100)
clock = Clock()
began, before = time.monotonic(), clock.now()
clock.set_rate(100, time.monotonic_ns() + 3 * _SECOND)
time.sleep(4)
difference = skew()
passed = clock.now() - before
print(json.dumps([difference, passed, time.monotonic() - began]))
"""
    difference, simulated, real = json.loads(printed(host, program))
    assert difference == 0
    assert real < simulated <= 3 * 99 + real


def test_a_process_sees_the_shared_clock(host: OpenRun) -> None:
    program = "make_clock(1_900_000_000 * _SECOND, 50, 50)\nprint(skew())"
    assert float(printed(host, program)) == 0


def source_of_host_side() -> str:
    """Return the program that runs on hosts, without its main function's call."""
    return inspect.getsource(host_side).partition('if __name__ == "__main__":')[0] + "\n"
