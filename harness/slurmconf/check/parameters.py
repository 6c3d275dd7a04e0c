"""Words of slurm.conf that have a number, such as SchedulerParameters=max_script_size=1000."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial

from harness.parsing import c_numbers
from harness.releases import Bounds
from harness.slurmconf.check import grammar
from harness.slurmconf.check.findings import FATAL, SLURMCTLD, SLURMD, Finding
from harness.slurmconf.check.parsed_file import Source

# How a function of Slurm reads a number -> the function that reads it in the same way.
_READERS: dict[str, Callable[[str], int | None]] = {
    "atoi": c_numbers.atoi,
    "atoul": c_numbers.atoul,
    "strtol": c_numbers.strtol,
    "uint32": partial(grammar.number, "uint32"),
}
# parse_timespec also accepts points in time, as _parse_time, _get_time and _get_date read them.
_DAY = r"(0[1-9]|[12]\d|3[01]|[1-9](?!\d))"
_DATE = rf"\d{{4}}-(0[1-9]|1[0-2])-{_DAY}|(0[1-9]|1[0-2]|[1-9](?!\d))[./]?{_DAY}[./]?(\d\d)?"
_TIME = r"([01]?\d|2[0-3]):[0-5]\d(:[0-5]\d)?\s*([ap]m)?"
_WORDS = "now.*|today|tomorrow|midnight|noon|fika|teatime|elevenses"
_MOMENT = re.compile(
    rf"uts\d{{7,}}|([ \t]|-|T|{_TIME}|{_DATE}|{_WORDS})+", re.IGNORECASE | re.ASCII
)
# Options that only one daemon reads.
_READ_BY = {"slurmctldparameters": SLURMCTLD, "slurmdparameters": SLURMD}


def check(source: Source) -> Iterator[Finding]:
    """Yield words whose number the release refuses, and words that it no longer accepts."""
    for option, words in source.release.keyword_bounds.items():
        setting = source.settings.get(option)
        if setting is None:
            continue
        for word, bounds in words.items():
            begin = "" if bounds.anywhere else "(?:^|,)"
            case = re.NOFLAG if bounds.exact_case else re.IGNORECASE
            found = re.search(rf"{begin}{re.escape(word)}([^,]*)", setting.value, case)
            scheduler = source.get("schedulertype") or "sched/backfill"
            if (
                found
                and bounds.only_with.lower() in setting.value.lower()
                and bounds.scheduler in {"", scheduler}
            ):
                problem = _problem(bounds, found[1])
                if problem:
                    message = f"{word}{found[1]} {problem} ({bounds.function})"
                    daemons = SLURMCTLD if bounds.scheduler else _READ_BY.get(option, ())
                    yield source.find(setting, bounds.severity, "value", message, daemons=daemons)
    parameters = source.settings.get("schedulerparameters")
    if (
        parameters
        and "max_job_bf=" in parameters.value.lower()
        and "bf_max_job_test=" not in parameters.value.lower()
        and source.get("schedulertype") in {None, "sched/backfill"}
    ):
        message = "max_job_bf is no longer supported"
        hint = "use bf_max_job_test"
        yield source.find(parameters, FATAL, "word", message, hint, SLURMCTLD)


def _problem(bounds: Bounds, value: str) -> str | None:
    """Return why a release refuses the value of a word; None if it accepts it."""
    if bounds.read_by == "timespec":
        is_number = re.fullmatch("[0-9]+", value) and c_numbers.strtol(value) < 2**64 - 1
        return None if is_number or _MOMENT.fullmatch(value) else "is not a number of seconds"
    if bounds.read_by == "word":
        return None if value.lower() in bounds.words else f"is not {' or '.join(bounds.words)}"
    if bounds.read_by == "uint32" and not value:
        return None  # conf_get_opt_str skips it
    number = _READERS[bounds.read_by](value)
    if number is not None and number == bounds.otherwise:
        return None
    if number is None:
        return "is not a number"
    if bounds.least is not None and number < bounds.least:
        return f"is less than {bounds.least}"
    if bounds.most is not None and number > bounds.most:
        return f"is more than {bounds.most}"
    return None
