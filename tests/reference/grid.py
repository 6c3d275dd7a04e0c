"""Lines with one option and a plausible value each, and how to ask the daemons about thousands."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import reference_cases
from harness import releases
from reference import Case

_BOOLEANS = ("yes", "NO", "1", "0", "up", "TRUE", "on", "2", '""')
_NUMBERS = (
    *("0", "1", "-1", "5", "10", "0x10", "007", "1.5", "10K", "65535", "65536", "4294967294"),
    *("4294967295", "4294967296", "INFINITE", "unlimited", "yes", "ten", "1:00", '""'),
)
_TEXTS = (
    *('""', "none", "yes", "0", "1", "-1", "10", "1:00:00", "7-0", "INFINITE", "unlimited", "ALL"),
    *("/opt/x", "x/y", "a,b", "a=1", "a:1", "n1", "n[1-2]", "n[3-9]", "odd", "DEFAULT", "5s", ","),
)
_LARGEST_GROUP = 12
# File -> what it needs to be read: other files and the daemon that reads them.
_GPUS = reference_cases.with_(
    "GresTypes=gpu,nic", "NodeName=k1 CPUs=8 State=CLOUD Gres=gpu:2", gres_conf=""
)
_BASES: dict[str, tuple[str, dict[str, str]]] = {
    "slurm.conf": ("slurmctld", {"slurm.conf": reference_cases.BASE}),
    "slurmdbd.conf": ("slurmdbd", {"slurmdbd.conf": reference_cases.SLURMDBD}),
    "gres.conf": ("slurmctld", _GPUS),
    "cgroup.conf": (
        "slurmctld",
        reference_cases.with_("ProctrackType=proctrack/cgroup", "TaskPlugin=task/cgroup"),
    ),
    "topology.conf": ("slurmctld", reference_cases.with_(reference_cases.TREE)),
    "acct_gather.conf": (
        "slurmctld",
        reference_cases.with_(
            "AcctGatherProfileType=acct_gather_profile/influxdb",
            "AcctGatherEnergyType=acct_gather_energy/ipmi",
            acct_gather_conf="ProfileInfluxDBHost=h\nProfileInfluxDBDatabase=d\n"
            "ProfileInfluxDBRTPolicy=p\n",
        ),
    ),
    "burst_buffer.conf": (
        "slurmctld",
        reference_cases.with_("BurstBufferType=burst_buffer/lua", burst_buffer_conf=""),
    ),
    "helpers.conf": (
        "slurmctld",
        reference_cases.with_(
            "NodeFeaturesPlugins=node_features/helpers", helpers_conf="Feature=a Helper=/opt/h\n"
        ),
    ),
    "job_container.conf": (
        "slurmd",
        reference_cases.with_slurmd(
            "JobContainerType=job_container/tmpfs",
            "PrologFlags=Contain",
            job_container_conf="BasePath=/opt/jobs\n",
        ),
    ),
}
# Section -> how a line of it begins; {} makes the lines of a configuration differ.
_BEGINS = {
    "slurm.conf NodeName": "NodeName=m{}",
    "slurm.conf PartitionName": "PartitionName=q{} Nodes=n1",
    "slurm.conf NodeSet": "NodeSet=s{}",
    "slurm.conf DownNodes": "DownNodes=n1",
    "slurm.conf PowerAction": "PowerAction=a{} Location=slurmd Program=/opt/x",
    "gres.conf": "NodeName=n1 Name=gpu",
    "gres.conf Name": "NodeName=n1 Name=gpu",
    "gres.conf NodeName": "NodeName=n1 Name=gpu",
    "topology.conf SwitchName": "SwitchName=s{} Nodes=n[1-4]",
    "helpers.conf Feature": "Feature=f{} Helper=/opt/h",
    "helpers.conf NodeName": "NodeName=n1 Feature=f{} Helper=/opt/h",
    "job_container.conf BasePath": "BasePath=/opt/{}",
    "job_container.conf NodeName": "NodeName=n1 BasePath=/opt/{}",
}


@dataclass(frozen=True, slots=True)
class Line:
    """A line to add to a file: an option of a section with a value."""

    file: str
    section: str
    option: str
    value: str

    def text(self, number: int) -> str:
        """Return the line; the number makes it differ from others of the same configuration."""
        begin = _BEGINS.get(self.section, "")
        begin = begin.replace("{}", str(number))
        return f"{begin} {self.option}={self.value}\n".lstrip()


def lines(release: str) -> list[Line]:
    """Return a line for each option of a release and each plausible value."""
    return [
        Line(section.split()[0], section, option.name, value)
        for section, options in releases.get(release).options.items()
        if section.split()[0] in _BASES and (" " not in section or section in _BEGINS)
        for option in options.values()
        if option.type != "array"
        for value in dict.fromkeys(_values(option, release))
    ]


def _values(option: releases.Option, release: str) -> Iterator[str]:
    if option.type == "boolean":
        yield from _BOOLEANS
        return
    if option.type != "string":
        yield from _NUMBERS
        return
    yield from _TEXTS
    known, name = releases.get(release), option.name.lower()
    if words := known.words.get(name):
        two = [*sorted(words.known), "odd"][:2]
        yield from (",".join(two), " ,".join(two), f"{two[0].upper()},odd", *sorted(words.gone))
        yield from (f"{word}5" if word[-1] == "=" else word for word in sorted(words.known))
        yield from (f"{word}{sign}" for word in words.known if word[-1] == "=" for sign in "0x")
    for family, plugins in sorted(known.plugins.items()):
        if name.startswith(family.replace("_", "")):
            yield from (f"{family}/{plugin}" for plugin in sorted(plugins))
            yield from sorted(plugins)


def case(chosen: Sequence[Line]) -> Case:
    """Return the configuration with these lines, which belong to the same file."""
    file = chosen[0].file
    daemon, files = _BASES[file]
    names = {line.option.lower() for line in chosen if " " not in line.section}
    kept = [
        line
        for line in files.get(file, "").splitlines(keepends=True)
        if line.partition("=")[0].lower() not in names
    ]
    text = "".join([*kept, *(line.text(number) for number, line in enumerate(chosen))])
    name = "; ".join(line.text(0).strip() for line in chosen)
    return Case(f"{file}: {name}", {**files, file: text}, daemon)


def groups(chosen: Sequence[Line], is_accepted: Callable[[Case], bool]) -> Iterator[list[Line]]:
    """Yield the lines in groups that check accepts, so that a daemon has to start less often.

    No group has two lines for the same option. A line that check refuses is a group of its own.
    """
    open_groups: list[list[Line]] = []
    for line in chosen:
        if not is_accepted(case([line])):
            yield [line]
            continue
        for group in open_groups:
            fits = group[0].file == line.file and line.option not in {one.option for one in group}
            if fits and is_accepted(case([*group, line])):
                group.append(line)
                break
        else:
            open_groups.append([line])
            group = open_groups[-1]
        if len(group) == _LARGEST_GROUP:
            open_groups.remove(group)
            yield group
    yield from open_groups
