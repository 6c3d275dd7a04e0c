"""What each Slurm release knows and does.

There is one data file per release, which lists the differences from the previous release.

A release file has the following parts, in which a text is a list of words. Sections are named after
a configuration file and, if its lines can have several options, the key that begins the line
("slurm.conf NodeName").

after       the previous release, from which the file lists the differences
behaviour   facts about the daemons, which `Behaviour` explains: all of them in the first release,
            then changes
options     the options that the release's parsers know, by the type that their values must have
gone        options that the parsers no longer know: a daemon that meets one refuses to start
retyped     options whose values must have a different type from this release on
refused     known options that are not accepted: `severity` says how (see slurmconf/check), `when`
            which values (a regular expression), `otherwise` what happens to other values,
            `daemons` which ones do so if not all that read the file
plugins     the plugins; `gone_plugins` were removed, `values_without_plugin` are accepted names
            that no plugin has (`gone_values_without_plugin`: no longer), `renamed_plugins` are
            old names that still work
words       the words that values consist of; `unknown` says what happens to other words,
            `reported` are removed words that slurmctld ignores with an error
keyword_bounds   which values words such as "conmgr_threads=" may have (`Bounds`)
defaults    defaults whose change makes a cluster work differently
before      what the release did before a patch level, as the rest of its file is about the newest:
            `source` names where Slurm says so, `behaviour` and `refused` have other facts,
            `without_options` and `without_words` what was unknown, `accepted` options that were
            not refused, `unbounded` words that could have any value; `defaults` are those that
            changed with this patch level
serves      releases of the slurmctlds that its slurmdbd serves, oldest first: the upgrade window
debian      where Debian packages it: `suite`, `packages`, what every host on the suite needs
            (`host_packages`), what apt needs to install from it (`apt_options`), the suite that has
            Apptainer for the release (`apptainer_suite`), the plugins of `srun --mpi` (`mpi`), and
            whether it has `scrontab`
federation_faults   known bugs of this release in a federation with clusters of `older` ones
chain_faults        known bugs of this release with what was left by `older` ones, if it is
                    upgraded to from them through others
backup_faults       known bugs of this release when a backup slurmctld takes over

In addition, needed_actions.toml says what a running cluster needs to apply a change,
printed_configuration.toml how daemons print options, and simulated_time.toml which settings a
simulation scales.
"""

from harness.releases.metrics import Readers, metric_readers
from harness.releases.release import (
    DEFAULT,
    DEFAULT_PORTS,
    KNOWN,
    Behaviour,
    Bounds,
    Default,
    FaultWithOlder,
    Needs,
    Option,
    Refusal,
    Release,
    Words,
    changed_defaults,
    changes,
    default_of,
    first,
    get,
    is_known,
    packaged,
    printed,
    series,
    since,
    upgrade_path,
    with_apptainer,
)

__all__ = [
    "DEFAULT",
    "DEFAULT_PORTS",
    "KNOWN",
    "Behaviour",
    "Bounds",
    "Default",
    "FaultWithOlder",
    "Needs",
    "Option",
    "Readers",
    "Refusal",
    "Release",
    "Words",
    "changed_defaults",
    "changes",
    "default_of",
    "first",
    "get",
    "is_known",
    "metric_readers",
    "packaged",
    "printed",
    "series",
    "since",
    "upgrade_path",
    "with_apptainer",
]
