"""Read the data of a Slurm release: what it knows and does, and its default ports."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

_FILES = {path.stem: path for path in sorted(Path(__file__).parent.glob("[0-9]*.toml"))}
KNOWN = tuple(_FILES)
DEFAULT = "24.11"
V = TypeVar("V")
# Where each daemon listens unless its configuration names another port.
DEFAULT_PORTS = {"slurmctld": 6817, "slurmd": 6818, "slurmdbd": 6819, "slurmrestd": 6820}


@dataclass(frozen=True, slots=True)
class Option:
    """An option in Slurm's spelling, the type of its values, and the first release that has it."""

    name: str
    type: str
    since: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """How a release refuses a known option. The severity can depend on the value.

    `daemons` are those that refuse it, if not all do that read the file.
    """

    severity: str
    hint: str
    when: re.Pattern[str] | None
    otherwise: str | None
    daemons: tuple[str, ...]
    since: str

    def of(self, value: str) -> str | None:
        """Return the severity for a value; None if the value is accepted."""
        return self.severity if self.when is None or self.when.fullmatch(value) else self.otherwise


@dataclass(frozen=True, slots=True)
class Words:
    """The words of an option's value, in lower case.

    `gone` maps removed words to the release that removed them. `reported` are those of them that
    slurmctld ignores with an error. `later` maps words to the patch level that adds them.
    """

    unknown: str
    known: frozenset[str]
    gone: Mapping[str, str]
    reported: frozenset[str]
    later: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Which values a word such as "conmgr_threads=" may have.

    `read_by` is how `function` of Slurm's source reads it: as a number by atoi, atoul, strtol,
    uint32 or timespec, or as one of `words`. `otherwise` is a number that it also accepts.
    `only_with` is a word without which it is not read, and `scheduler` the SchedulerType that reads
    it. `anywhere`: it is found even in the middle of a different word; `exact_case`: only if it is
    spelled like this. With a wrong value, a daemon refuses to start (`severity` fatal) or uses a
    different one (error).
    """

    function: str
    read_by: str
    least: int | None = None
    most: int | None = None
    otherwise: int | None = None
    only_with: str = ""
    scheduler: str = ""
    severity: str = "fatal"
    words: tuple[str, ...] = ()
    anywhere: bool = False
    exact_case: bool = False


@dataclass(frozen=True, slots=True)
class Default:
    """A default that changed.

    `matters_with` is an option without which the change has no effect.
    """

    before: str
    now: str
    matters_with: str | None = None


@dataclass(frozen=True, slots=True)
class FaultWithOlder:
    """A known bug of a release that comes with any of the `older` ones."""

    older: frozenset[str]
    what: str


@dataclass(frozen=True, slots=True)
class Needs:
    """What a running cluster needs to apply a changed option of one file.

    needed_actions.toml explains the words.
    """

    default: str
    by_option: Mapping[str, str]
    drain: frozenset[str]
    why: Mapping[str, str]

    def of(self, option: str, words: Collection[str] = ()) -> tuple[str, bool, str]:
        """Return what changing an option needs, whether nodes must be drained, and the reason.

        `words` are the words of its value that change, in lower case.
        """
        key = next(
            (key for word in words if (key := f"{option.lower()}={word}") in self.by_option),
            option.lower(),
        )
        drain = key in self.drain or "*" in self.drain
        return (
            self.by_option.get(key, self.default),
            drain,
            self.why.get(key, self.why.get("*", "")),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """Facts about the daemons of a release. Severities are those of harness.slurmconf.check."""

    # Severity of a value that slurmctld cannot use: one of a wrong type, or of SlurmctldHost, a
    # partition or a switch.
    unusable_value: str
    # Severity of a NodeName line without nodes.
    empty_node_name: str
    # Severity of a topology.conf without switches or blocks.
    empty_topology: str
    # A switch or block may have neither nodes nor switches.
    empty_switches: bool
    # Switches, blocks and rings of topology.yaml must have names; the most bytes in the name of a
    # switch of topology.conf, or 0.
    units_need_names: bool
    longest_switch_name: int
    # BlockSizes of topology.yaml must be right, as those of topology.conf.
    checks_yaml_block_sizes: bool
    # Each block must have as many nodes as the first BlockSizes, or as the first block.
    full_blocks: bool
    # Severity of select/linear together with topology/tree; "" if they work together.
    linear_with_tree: str
    # slurmctld does not start without a node and a partition.
    needs_node_and_partition: bool
    # hostlist_create: text may follow the last "]" of a name; a name with a "[" but no "]" is cut
    # there and gets a "]", where later releases refuse it.
    hostlist_suffixes: bool
    completes_brackets: bool
    # hostlist_push: slurmctld crashes on a NodeSet whose Nodes are not a hostlist, once a partition
    # has it.
    crashes_on_bad_node_set: bool
    # NodeHostname, NodeAddr or BcastAddr of several nodes may be one name, even without
    # --enable-multiple-slurmd.
    nodes_may_share_address: bool
    # A NodeSet may not have the name of a node.
    refuses_node_set_like_node: bool
    # Nodes of a partition: ALL in any case; functions such as feature{gpu}. When a
    # NodeSet with Nodes=ALL has all nodes: "always", in any case; "alone", in a partition of no
    # other names, and only as ALL; "never".
    all_nodes_in_any_case: bool
    node_functions: bool
    node_set_of_all: str
    # NodeHostname must name one host, or one per node.
    counts_hostnames: bool
    # A partition's SuspendTime must be a number of 32 bits.
    bounds_partition_suspend_time: bool
    # An unknown PreemptMode of a partition is refused; later releases mask the error with GANG.
    refuses_preempt_mode_of_partition: bool
    # slurmctld forks slurmscriptd, which runs its programs.
    has_slurmscriptd: bool
    # Without slurmdbd, a partition that names a QOS is refused.
    qos_needs_slurmdbd: bool
    # Include: wildcards work; a relative path starts at the directory of the main file, not at that
    # of the including one.
    include_wildcards: bool
    include_from_main_file: bool
    # A plugin called "none" has no file: nothing is loaded for it. The same is true of
    # topology/default.
    none_is_no_file: bool
    default_topology_is_no_file: bool
    # Kinds of plugins whose names may omit the kind, as in "munge" for "auth/munge".
    bare_plugins: tuple[str, ...]
    # Kinds of plugins that may be missing: slurmctld starts without them.
    dispensable_plugins: tuple[str, ...]
    # Kinds of plugins that slurmctld loads when it starts, even if nothing uses them.
    eager_plugins: tuple[str, ...]
    # Words of PreemptMode that go with an action, in lower case.
    preempt_modifiers: tuple[str, ...]
    # select/cons_res and cons_tres need SelectTypeParameters.
    cons_needs_parameters: bool
    # select/cons_res and cons_tres refuse nodes with as many CPUs as sockets, but more cores.
    cons_refuses_cpu_per_socket: bool
    # FirstJobId=0 is refused.
    refuses_first_job_id_0: bool
    # A larger number is not a user.
    largest_user_id: int
    # DebugFlags=Script logs the path and output of each script: run_command().
    logs_scripts: bool
    # slurmd, too, logs an error if PrologSlurmctld cannot be executed: init() in prep_script.c.
    slurmd_opens_controller_scripts: bool
    # A SuspendTime that does not fit in 32 bits is refused; negative numbers do not.
    bounds_suspend_time: bool
    # Without slurmdbd, priority/multifactor crashes if PriorityFlags removes FAIR_TREE.
    crashes_without_fair_tree: bool
    # acct_gather_profile/influxdb needs ProfileInfluxDBRTPolicy.
    influxdb_needs_policy: bool
    # ConstrainRAMSpace does not count with CgroupPlugin=disabled.
    disabled_cgroups_limit_nothing: bool
    # slurmdbd compares SlurmUser with the name of the owner of slurmdbd.conf, so that a number
    # never is the same.
    slurmdbd_compares_user_names: bool
    # slurmctld compares UnkillableStepTimeout with MessageTimeout.
    checks_unkillable_timeout: bool
    # slurmctld warns of DefMemPerCPU together with DefMemPerNode, and of the two maxima, outside of
    # partitions too.
    checks_memory_limits: bool
    # slurmctld logs warnings; before, it logged them as information, or about switches as errors.
    logs_warnings: bool
    # sacctmgr shows these options of slurmdbd.conf as they are in its own slurm.conf
    # (extra_get_functions.c).
    shown_from_slurm_conf: tuple[str, ...]
    # SuspendExcNodes may name ALL and NodeSets (_parse_exc_nodes of power_save.c).
    excludes_node_sets: bool
    # A job also powers up the nodes between its own, in Slurm's order (do_power_work of
    # power_save.c; 22.05 tests each node).
    resumes_nodes_between: bool
    # An empty jwt_key= is not the same as none.
    refuses_empty_jwt_key: bool
    # slurmctld refuses a PrologSlurmctld or EpilogSlurmctld that it cannot execute.
    checks_controller_scripts: bool
    # slurmctld logs an error if MinJobAge is 1, or MessageTimeout too long to notice failures.
    checks_job_age: bool
    # slurmctld logs an error about words of JobAcctGatherParams and SlurmdParameters that do not
    # work with JobAcctGatherType or each other.
    checks_word_pairs: bool
    # slurmctld logs an error if SuspendTime is set without programs; and if CLOUD nodes have
    # neither.
    reports_no_power_saving: bool
    reports_cloud_without_power_saving: bool
    # Debian packages sackd, which gets login hosts their configuration from slurmctld.
    has_sackd: bool
    # The default of bf_max_job_test, a word of SchedulerParameters.
    tested_jobs: int
    # Words of PrologFlags that imply Contain, in lower case.
    implies_contain: tuple[str, ...]
    # JobContainerType or NamespaceType needs PrologFlags=Contain if one of these is in it.
    contained: tuple[str, ...]
    # SlurmctldParameters=enable_stepmgr needs PrologFlags=Contain.
    stepmgr_needs_contain: bool
    # Options with two words that exclude each other, in lower case.
    exclusive_words: tuple[tuple[str, str, str], ...]
    # Options with a word that excludes all others, in lower case.
    lone_words: tuple[tuple[str, str], ...]
    # What slurmctld requires of rpc_queue.yaml: "" if it does not read it, "yaml" that it can be
    # read, "mapping" that it is one; "absent" if it crashes on any.
    rpc_queue_file: str
    # slurmctld reads resources.yaml.
    reads_resources: bool
    # resources.yaml may have variables, a topology and MODE_3.
    resources_have_variables: bool
    # Blanks around the words of AccountingStorageTRES are ignored.
    trims_tres: bool
    # AccountingStorageTRES=gres/gpu includes gres/gpumem and gres/gpuutil.
    counts_gpu_usage: bool
    # TRES that slurmctld refuses because they have a new name.
    renamed_tres: tuple[str, ...]
    # Characters that can separate the name of a license from its count.
    license_separators: str
    # Licenses that are separated by "|" are alternatives.
    alternative_licenses: bool
    # When _init_power_config of slurmctld checks rates and intervals, and expands SuspendExcNodes
    # without noticing that it is not a hostlist: "always", or only when it saves power ("saving");
    # "" is never.
    checks_power_saving: str
    # SuspendTime=INFINITE never saves power; before, it is 0 seconds (atoi).
    has_infinite_suspend_time: bool
    # GRES that share a GPU, in lower case.
    shared_gres: tuple[str, ...]
    # Flags of gres.conf, in lower case. Lines of the same GRES must have the same ones, if any of
    # them sets variables ("_env"), or if there are any at all.
    gres_flags: tuple[str, ...]
    compares_all_gres_flags: bool
    # Severity of AutoDetect in gres.conf for a cloud node.
    cloud_autodetect: str
    # Cores of a GRES of a cloud node must be "whole sockets", or "one whole socket or all"; "": any
    # (_check_core_range_matches_sock).
    cores_of_gres: str
    # jobcomp/kafka compares the topics of JobCompParams (_validate_kafka_conf).
    compares_topics: bool
    # What AutoDetect of gres.conf detects, in the order in which it looks for these words, and the
    # severity of any other word (_handle_autodetect_flags).
    autodetect: tuple[str, ...]
    unknown_autodetect: str
    # AutoDetect=OFF, in upper case, detects nothing, but is not the same as "off".
    exact_autodetect_off: bool
    # slurmctld starts with one plugin of BurstBufferType only.
    one_burst_buffer: bool
    # Severity of an AuthInfo with which munge does not answer.
    unusable_munge_socket: str
    # Daemons log an error for a node with a shared GRES and without a gpu (gres_init_node_config).
    needs_shared_gpu: bool
    # Links of gres.conf need one -1 (gres_links_validate).
    needs_own_link: bool
    # slurmctld ignores threadpool=enabled, with a warning (_parse_params of threadpool.c).
    ignores_threadpool: bool
    # MultipleFiles of gres.conf must have more than one file.
    counts_multiple_files: bool
    # Options, in lower case, whose plugins slurmd does not load, although other releases do.
    slurmd_does_not_load: tuple[str, ...]
    # Plugins that only slurmd can load: they use its variables, without a weak reference.
    plugins_of_slurmd: tuple[str, ...]
    # slurmd does not start with job_container/tmpfs if its node has no BasePath in
    # job_container.conf; before 22.05, only the jobs fail.
    containers_need_base_path: bool
    # slurmdbd starts with StorageType=accounting_storage/none.
    slurmdbd_without_storage: bool
    # A controller may join a federation before the other clusters have registered with slurmdbd.
    federates_unregistered: bool
    # slurmctld does not start if it was killed before it saved the fair-share usage.
    needs_saved_usage: bool
    # A job that fits no leaf switch gets leaves below one switch, as low in the tree as possible.
    near_switches: bool
    # scontrol lists the blocks that are combined for larger jobs (AggregatedBlock).
    lists_joined_blocks: bool
    # slurmrestd requires a token with each request, not once per connection; slurmctld limits the
    # life of tokens.
    tokens_are_safe: bool
    # slurmrestd has POST /node/, and GET /jobs/ reports what a job has been allocated on each node.
    rest_reports_allocations: bool
    # Each task of a step with --container has its own container and environment.
    container_for_each_task: bool
    # slurmctld logs a warning about keys of topology.yaml that it does not know.
    reports_unknown_topology_keys: bool
    # slurmctld does not start with more nodes (MAX_SLURM_NODES of slurm.h, which counts from 0); 0
    # is no limit.
    most_nodes: int
    # slurmd dies on `sbatch --export=NAME` if it may not create namespaces: _clone_env_child. Later
    # releases do without if there may be none.
    environment_needs_namespaces: bool
    # AllowAccounts and DenyAccounts of a partition include the accounts below those that they name:
    # part_policy_valid_acct in partition_mgr.c.
    account_lists_include_subaccounts: bool
    # With PrologFlags=Alloc, tasks of srun wait for Prolog on all nodes of the job. Otherwise, each
    # task waits for its own node only.
    srun_waits_for_every_prolog: bool
    # A task whose TaskProlog fails does not run: exec_task() of task.c.
    task_prolog_can_fail: bool
    # Severity of more nodes than MaxNodeCount; after an error, slurmctld lacks the others.
    too_many_nodes: str
    # MaxNodeCount=0 is no limit.
    zero_is_no_node_limit: bool
    # `sbatch --external` submits a job that starts nothing on its nodes; nodes may have
    # State=EXTERNAL.
    external_jobs: bool
    # auth/slurm reads slurm.jwks, with several keys.
    several_auth_keys: bool
    # Options of cgroup.conf with which slurmd starts if it may not use cgroup controllers.
    cgroup_conf_without_controllers: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Release(Behaviour):
    """Everything that is known about a release.

    The package's docstring explains the parts. Options that are keys are in lower case.
    """

    name: str
    serves: tuple[str, ...] = ()
    suite: str | None = None
    packages: tuple[str, ...] = ()
    host_packages: tuple[str, ...] = ()
    apt_options: tuple[str, ...] = ()
    apptainer_suite: str | None = None
    mpi: frozenset[str] = frozenset()
    scrontab: bool = False
    further_suite: str | None = None
    federation_faults: tuple[FaultWithOlder, ...] = ()
    chain_faults: tuple[FaultWithOlder, ...] = ()
    backup_faults: tuple[str, ...] = ()
    options: Mapping[str, Mapping[str, Option]] = field(default_factory=dict)
    gone: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    refused: Mapping[str, Mapping[str, Refusal]] = field(default_factory=dict)
    plugins: Mapping[str, frozenset[str]] = field(default_factory=dict)
    gone_plugins: Mapping[str, str] = field(default_factory=dict)
    renamed_plugins: Mapping[str, str] = field(default_factory=dict)
    words: Mapping[str, Words] = field(default_factory=dict)
    keyword_bounds: Mapping[str, Mapping[str, Bounds]] = field(default_factory=dict)
    defaults: Mapping[str, Mapping[str, Default]] = field(default_factory=dict)

    @property
    def topology_file(self) -> str:
        """The file that describes topologies.

        It is topology.yaml, or in older releases topology.conf, which describes only one.
        """
        return "topology.yaml" if "topology.yaml" in self.options else "topology.conf"

    @property
    def supports_cgroup_v2(self) -> bool:
        """Whether Slurm can use cgroups on a machine with cgroup v2."""
        return "v2" in self.plugins.get("cgroup", ())


# Apptainer, and programs that mount a SIF for a user.
_APPTAINER = ("apptainer", "squashfuse", "fuse-overlayfs", "squashfs-tools")


def with_apptainer(release: Release) -> Release:
    """Return a release with the packages of Apptainer, or unchanged if Debian has none for it."""
    if not release.apptainer_suite:
        return release
    return replace(
        release, packages=(*release.packages, *_APPTAINER), further_suite=release.apptainer_suite
    )


@cache
def changes(release: str) -> Mapping[str, Needs]:
    """Return what changes of each file need in a release."""
    data = tomllib.loads((Path(__file__).parent / "needed_actions.toml").read_text())
    era = [era for era in data["era"] if era["since"] <= release][-1]
    return {file: _needs(part, data["why"].get(file, {})) for file, part in era["files"].items()}


@cache
def printed() -> dict[str, Any]:
    """Return printed_configuration.toml: how Slurm prints the configuration in daemons' memory.

    Names of options with a default are in lower case.
    """
    data = tomllib.loads((Path(__file__).parent / "printed_configuration.toml").read_text())
    for part in ("defaults", "unprinted_defaults"):
        for file, text in data[part].items():
            lines = (line.split(" ", 1) for line in text.strip().splitlines())
            data[part][file] = {name.lower(): value for name, value in lines}
    return data


def _needs(part: Mapping[str, Any], why: Mapping[str, str]) -> Needs:
    lists = {
        need: words.lower().split()
        for need, words in part.items()
        if need not in {"default", "why"}
    }
    drain = lists.pop("drain", [])
    by_option = {option: need for need, options in lists.items() for option in options}
    reasons = {name.lower(): text for name, text in {**why, **part.get("why", {})}.items()}
    return Needs(part["default"], by_option, frozenset(drain), reasons)


def series(name: str) -> str:
    """Return the release of a patch level such as 24.11.3; a release itself is returned as it is.

    >>> series("24.11.3"), series("24.11")
    ('24.11', '24.11')
    """
    return ".".join(name.split(".")[:2])


def is_known(name: str) -> bool:
    """Return whether a name is that of a release in KNOWN, or of any of its patch levels."""
    return series(name) in KNOWN and bool(re.fullmatch(r"\d+\.\d+(\.\d+)?", name))


@cache
def get(name: str) -> Release:
    """Return the facts about a release in KNOWN, or about one of its patch levels.

    A release without a patch level is its newest one that is known, and so are those after it.
    """
    release = _release(series(name))
    for level, changes_ in _before(name):
        release = _earlier(release, changes_, level)
    return replace(release, name=name)


def _data(name: str) -> dict[str, Any]:
    return tomllib.loads(_FILES[name].read_text())


@cache
def _levels(name: str) -> dict[str, Any]:
    """Return the patch levels that changed something, newest first, with what was before."""
    levels = _data(name).get("before", {})
    return {level: levels[level] for level in sorted(levels, key=_patch, reverse=True)}


def _patch(name: str) -> float:
    """Return the number of a patch level; infinity for a release without one."""
    number = name.removeprefix(series(name)).removeprefix(".")
    return int(number) if number else math.inf


def _before(name: str) -> Iterator[tuple[str, Any]]:
    """Yield the patch levels after one, newest first, with what the release did before each."""
    for level, changes_ in _levels(series(name)).items():
        if _patch(level) > _patch(name):
            yield level, changes_


def _release(name: str) -> Release:
    """Return the facts about the newest patch level of a release."""
    data = _data(name)
    behaviour = _behaviour(data)
    before = get(data["after"]) if "after" in data else Release(name=name, **behaviour)
    debian = data.get("debian", {})
    return replace(
        before,
        name=name,
        **behaviour,
        serves=tuple(data["serves"]),
        suite=debian.get("suite"),
        packages=tuple(debian.get("packages", ())),
        host_packages=tuple(debian.get("host_packages", ())),
        apt_options=tuple(debian.get("apt_options", ())),
        apptainer_suite=debian.get("apptainer_suite"),
        mpi=frozenset(debian.get("mpi", ())),
        scrontab=debian.get("scrontab", False),
        federation_faults=_faults_with_older(data.get("federation_faults", ())),
        chain_faults=_faults_with_older(data.get("chain_faults", ())),
        backup_faults=tuple(data.get("backup_faults", ())),
        options=_options(before, data, name),
        gone=_gone(before, data, name),
        refused=_refused(before, data, name),
        plugins=_plugins(before, data),
        gone_plugins={
            **before.gone_plugins,
            **{
                f"{kind}/{plugin}": name
                for kind, words in data.get("gone_plugins", {}).items()
                for plugin in words.split()
            },
        },
        renamed_plugins={**before.renamed_plugins, **data.get("renamed_plugins", {})},
        words=_words(before, data, name),
        keyword_bounds=_keyword_bounds(before, data),
        defaults=_defaults(data),
    )


def _earlier(release: Release, data: dict[str, Any], level: str) -> Release:
    """Return a release as it was before a patch level: `data` is that part of its file."""
    words_of = dict(release.words)
    for option, texts in data.get("without_words", {}).items():
        missing = {*texts.lower().split()}
        words = words_of[option.lower()]
        words_of[option.lower()] = replace(
            words,
            known=words.known - missing,
            later={**words.later, **dict.fromkeys(missing, level)},
        )
    return replace(
        release,
        **_behaviour(data),
        options=_without(release.options, data.get("without_options", {})),
        refused=_without(_refused(release, data, level), data.get("accepted", {})),
        words=words_of,
        keyword_bounds=_without(
            release.keyword_bounds,
            {option.lower(): words for option, words in data.get("unbounded", {}).items()},
        ),
    )


def _without(
    parts: Mapping[str, Mapping[str, V]], missing: Mapping[str, str]
) -> dict[str, Mapping[str, V]]:
    """Return parts without the words that are missing from each."""
    return {
        part: {
            word: value
            for word, value in of_part.items()
            if word not in missing.get(part, "").lower().split()
        }
        for part, of_part in parts.items()
    }


def _behaviour(data: dict[str, Any]) -> dict[str, Any]:
    return {key: _frozen(value) for key, value in data.get("behaviour", {}).items()}


def _defaults(data: dict[str, Any]) -> dict[str, dict[str, Default]]:
    return {
        section: {key: Default(**default) for key, default in changed.items()}
        for section, changed in data.get("defaults", {}).items()
    }


def changed_defaults(
    older: str, newer: str
) -> Iterator[tuple[str, Mapping[str, Mapping[str, Default]]]]:
    """Yield the releases and patch levels after `older` up to `newer`, and their new defaults."""
    for name in KNOWN:
        if series(older) < name <= series(newer):
            yield name, get(name).defaults
        for level, data in reversed(_levels(name).items()):
            if _is_older(older, level) and not _is_older(newer, level):
                yield level, _defaults(data)


def _is_older(name: str, level: str) -> bool:
    """Return whether a release or patch level is older than a patch level."""
    if series(name) != series(level):
        return series(name) < series(level)
    return _patch(name) < _patch(level)


def default_of(release: Release, section: str, option: str) -> str:
    """Return the default of an option that is in `defaults` of a release file."""
    changes_ = [
        (name, get(name).defaults[section][option])
        for name in KNOWN
        if option in get(name).defaults.get(section, {})
    ]
    later = [default.before for name, default in changes_ if name > release.name]
    return later[0] if later else changes_[-1][1].now


def since(section: str, key: str) -> str | None:
    """Return the first release in KNOWN that has an option; None if there is none.

    It is a patch level if that added the option.
    """
    for name in KNOWN:
        if key.lower() in get(name).options.get(section, {}):
            adding = (
                level
                for level, data in _levels(name).items()
                if key.lower() in data.get("without_options", {}).get(section, "").lower().split()
            )
            return next(adding, name)
    return None


def first(section: str) -> str | None:
    """Return the first release in KNOWN that knows options of a file; None if there is none."""
    return next((name for name in KNOWN if section in get(name).options), None)


def upgrade_path(older: str, newer: str) -> tuple[str, ...]:
    """Return the shortest upgrade path, in which each release is in the next one's upgrade window.

    Of several shortest paths, it is one with the most releases that Debian packages, and among
    these the one with the newest releases. () if there is none.
    """
    paths: list[tuple[str, ...]] = [(older,)]
    while paths and not any(path[-1] == newer for path in paths):
        paths = [
            (*path, name)
            for path in paths
            for name in KNOWN
            if name > path[-1] and path[-1] in get(name).serves
        ]
    complete = [path for path in paths if path[-1] == newer]
    return max(
        complete, key=lambda path: (sum(bool(get(name).suite) for name in path), path), default=()
    )


def _faults_with_older(faults: Iterable[dict[str, Any]]) -> tuple[FaultWithOlder, ...]:
    return tuple(FaultWithOlder(frozenset(fault["older"]), fault["what"]) for fault in faults)


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def _options(before: Release, data: dict[str, Any], name: str) -> dict[str, Mapping[str, Option]]:
    options_of: dict[str, dict[str, Option]] = {
        section: dict(options) for section, options in before.options.items()
    }
    for section, types in data.get("options", {}).items():
        for kind, words in types.items():
            options_of.setdefault(section, {}).update(
                {word.lower(): Option(word, kind, name) for word in words.split()}
            )
        options_of.setdefault(section, {})
    for section, words in data.get("gone", {}).items():
        for word in words.split():
            options_of[section].pop(word.lower(), None)
    for section, kinds in data.get("retyped", {}).items():
        for key, kind in kinds.items():
            options_of[section][key.lower()] = replace(options_of[section][key.lower()], type=kind)
    return dict(options_of)


def _gone(before: Release, data: dict[str, Any], name: str) -> dict[str, dict[str, str]]:
    gone_options = {section: dict(words) for section, words in before.gone.items()}
    for section, words in data.get("gone", {}).items():
        gone_options.setdefault(section, {}).update({word.lower(): name for word in words.split()})
    return gone_options


def _refused(before: Release, data: dict[str, Any], name: str) -> dict[str, dict[str, Refusal]]:
    refusals_of = {section: dict(refusals) for section, refusals in before.refused.items()}
    for section, refusals in data.get("refused", {}).items():
        for key, refusal in refusals.items():
            when = refusal.get("when")
            refusals_of.setdefault(section, {})[key.lower()] = Refusal(
                severity=refusal["severity"],
                hint=refusal["hint"],
                when=re.compile(when) if when else None,
                otherwise=refusal.get("otherwise"),
                daemons=tuple(refusal.get("daemons", ())),
                since=name,
            )
    return refusals_of


def _plugins(before: Release, data: dict[str, Any]) -> dict[str, frozenset[str]]:
    plugins_of = dict(before.plugins)
    for part in ("gone_plugins", "gone_values_without_plugin"):
        for kind, words in data.get(part, {}).items():
            plugins_of[kind] = plugins_of.get(kind, frozenset()) - {*words.split()}
    for part in ("plugins", "values_without_plugin"):
        for kind, words in data.get(part, {}).items():
            plugins_of[kind] = plugins_of.get(kind, frozenset()) | {*words.split()}
    return plugins_of


def _words(before: Release, data: dict[str, Any], name: str) -> dict[str, Words]:
    words_of = dict(before.words)
    for option, change in data.get("words", {}).items():
        old = words_of.get(option.lower(), Words("silent", frozenset(), {}, frozenset()))
        new, gone, reported = (
            {*change.get(part, "").lower().split()} for part in ("new", "gone", "reported")
        )
        gone |= reported
        words_of[option.lower()] = Words(
            unknown=change.get("unknown", old.unknown),
            known=(old.known - gone) | new,
            gone={word: release for word, release in old.gone.items() if word not in new}
            | dict.fromkeys(gone, name),
            reported=(old.reported - new) | reported,
        )
    return words_of


def _keyword_bounds(before: Release, data: dict[str, Any]) -> dict[str, dict[str, Bounds]]:
    bounds_of = {option: dict(words) for option, words in before.keyword_bounds.items()}
    for option, words in data.get("keyword_bounds", {}).items():
        of_option = bounds_of.setdefault(option.lower(), {})
        for word, bounds in words.items():
            of_option[word] = Bounds(**{key: _frozen(value) for key, value in bounds.items()})
    return bounds_of


@cache
def packaged() -> tuple[str, ...]:
    """Return the releases that Debian packages."""
    return tuple(name for name in KNOWN if get(name).suite)
