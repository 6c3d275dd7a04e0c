#!/usr/bin/env python3
"""Collect how a Slurm site is configured into one file, a site bundle, for slurm-harness.

Run it on a controller, as root or as SlurmUser; other users cannot read everything. It needs
Python 3.6 or later and Slurm's commands. It only reads: it changes nothing in Slurm, and writes
nothing but the bundle (mode 0600) and a temporary directory that it removes. The bundle is a
compressed tar archive, which you can list, read and repack before you give it to anyone:

    manifest.json    what was collected, replaced and left out, and the command behind each output
    files/...        configuration files and the scripts that they name, with their full paths
    output/...       what Slurm's commands and the system printed; times are in UTC

Never collected: keys, and files that are not text. Replaced: values that look like passwords, keys
or tokens. The manifest lists both. Read the scripts in the bundle for secrets that have no such
form. With --pseudonyms, names of users, groups, accounts, jobs, hosts and domains are replaced in
all files, wherever they are whole words; names of clusters, partitions and QOS, paths and IP
addresses are kept.
"""

import argparse
import fnmatch
import glob
import grp
import io
import json
import os
import pwd
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from typing import Any, Dict, Iterable, List, Optional, Set

FORMAT = 1  # of the bundle
_LARGEST = 4 << 20  # bytes of a file; larger files are not configuration
_PATIENCE = 600  # seconds for a command

# Files that are never read.
_KEYS = ("*.key", "*.pem", "*.crt", "*.p12", "*.jwks", "jwt*", "id_*", "*.key.*", "krb5*")
# Options whose values are programs of the site.
_PROGRAM = re.compile(
    r"(?im)\b(?:\w*(?:Prolog|Epilog)(?:Slurmctld)?|\w+Program|ArchiveScript|Helper)\s*=\s*"
    r"(\"[^\"]*\"|\S+)"
)
_INCLUDE = re.compile(r"(?im)^\s*include\s+(\S+)")
# What is replaced, and why: the group "secret" of each.
_SECRETS = (
    ("a password", re.compile(r"(?im)^\s*\w*Pass\s*=\s*(?P<secret>[^/(\s]\S*)")),
    (
        "a password, key or token",
        re.compile(
            r"(?i)\b\w*(?:passw(?:or)?d|secret|token|api_?key|access_?key)\w*[\"']?"
            r"\s*[=:]\s*[\"']?(?P<secret>[^\s\"'$(/{\[][^\s\"']*)"
        ),
    ),
    ("a token", re.compile(r"\bBearer\s+(?P<secret>[A-Za-z0-9._~+/-]{8,}=*)")),
    ("a token", re.compile(r"(?P<secret>\beyJ[\w-]+\.[\w-]+\.[\w-]+)")),
    ("a password", re.compile(r"://[^\s/:@]+:(?P<secret>[^\s/@$]+)@")),
    ("a password", re.compile(r"\b(?:mysql|mariadb)\w*\s.*?\s-p(?P<secret>[^\s$\"'-]\S*)")),
    ("a private key", re.compile(r"(?s)-----BEGIN [A-Z ]*KEY-----(?P<secret>.*?)-----END")),
)
_REPLACED = "REPLACED"

# Output -> the command that prints it.
_COMMANDS = {
    "version.txt": "sinfo --version",
    "scontrol/config.txt": "scontrol show config",
    "scontrol/nodes.txt": "scontrol --all --oneliner show node",
    "scontrol/partitions.txt": "scontrol --all --oneliner show partition",
    "scontrol/reservations.txt": "scontrol --oneliner show reservation",
    "scontrol/licenses.txt": "scontrol --oneliner show licenses",
    "scontrol/topology.txt": "scontrol show topology",
    "scontrol/federation.txt": "scontrol show federation",
    "sinfo.txt": "sinfo --all --Node --long",
    "limits.txt": "sh -c 'ulimit -a'",
    "units.txt": "systemctl cat slurmctld slurmdbd slurmd munge mariadb mysql",
    "kernel.txt": "uname -srm",
}
# With fair-share only: sshare needs it.
_USAGE = "sshare --all --parsable2 --format=Account,User,RawUsage"
_PACKAGES = {"dpkg-query": "dpkg-query --show", "rpm": "rpm --query --all"}
SYSTEM_FILES = ("/etc/os-release", "/etc/security/limits.conf", "/etc/security/limits.d/*.conf")

_GRP = "GrpJobs GrpJobsAccrue GrpSubmit GrpTRES GrpTRESMins GrpTRESRunMins GrpWall"
# What sacctmgr shows, and its fields; a release leaves out those that it does not know.
_TABLES = {
    "cluster": "Cluster Federation ID Features FedState TRES Flags",
    "account withcoordinator": "Account Description Organization Coordinators Flags",
    "user withcoordinator": "User AdminLevel DefaultAccount DefaultWCKey Coordinators Flags",
    "assoc woplimits": "Cluster Account User Partition ParentName Share Priority "
    + _GRP
    + " MaxJobs"
    " MaxJobsAccrue MaxSubmit MaxTRES MaxTRESPerNode MaxTRESMins MaxWall MinPrioThreshold QOS"
    " DefaultQOS Comment Flags",
    "qos": "Name Description Priority GraceTime Preempt PreemptExemptTime PreemptMode Flags"
    " UsageThreshold UsageFactor LimitFactor " + _GRP + " MaxTRES MaxTRESPerNode MaxTRESMins"
    " MaxWall MaxTRESPU MaxTRESRunMinsPU MaxJobsPU MaxJobsAccruePU MaxSubmitPU MaxTRESPA"
    " MaxTRESRunMinsPA MaxJobsPA MaxJobsAccruePA MaxSubmitPA MinTRES MinPrioThreshold",
    "tres": "Type Name ID",
    "wckey": "WCKey Cluster User",
    "resource withclusters": "Name Server Type Count Cluster Allowed LastConsumed Flags",
}
# What sacct shows of a job with --days; a release leaves out those that it does not know. Of the
# command line, which is the last, only the dependency is kept.
_TRACE = (
    "JobIDRaw JobID Cluster Submit Eligible Start End Timelimit ReqNodes AllocNodes ReqCPUS"
    " AllocCPUS ReqMem ReqTRES AllocTRES Partition QOS Account User State ExitCode JobName"
    " Reservation Constraints Licenses Priority Restarts SubmitLine"
)
_DEPENDENCY = re.compile(
    r"(?:^|\s)(?:--dependency[=\s]\s*|-d\s*)[\"']?([a-z]+:[^\s\"'|]+|singleton)"
)
# Words of Slurm, which are kept even if a user or an account has one as its name.
_WORDS = {
    *("root", "slurm", "munge", "localhost", "all", "none", "null", "n/a", "normal", "default"),
    *("unlimited", "unknown", "account", "accounts", "billing", "cpu", "energy", "fs", "gpu"),
    *("gres", "group", "license", "mem", "node", "nodes", "partition", "qos", "user", "users"),
}
# Options of slurm.conf, and what scontrol prints, that name hosts, groups, accounts and users.
_HOSTS = re.compile(
    r"(?i)(?<![\w-])(?:NodeName|AllocNodes|ControlMachine|BackupController|\w*(?:Host|HostName|Addr))"
    r"(?:\[\d+\])?\s*=\s*([^\s()]+)"
)
_GROUPS = re.compile(r"(?i)(?<![\w-])(?:(?:Allow|Deny)?Groups)=(\S+)")
_ACCOUNTS = re.compile(r"(?i)(?<![\w-])(?:(?:Allow|Deny)?Accounts|AllowAcct)=(\S+)")
_USERS = re.compile(r"(?i)(?<![\w-])Users=(\S+)")
_MAIL_DOMAIN = re.compile(r"(?im)^\s*MailDomain=(\S+)")
# The first column of limits.conf(5): a user, or a group after "@".
_LIMITED = re.compile(r"(?m)^[ \t]*(@?)([A-Za-z_][\w.-]*)[ \t]+(?:soft|hard|-)[ \t]")


class Bundle:
    """The files of a bundle, by path, and its manifest."""

    def __init__(self) -> None:
        self.texts: Dict[str, str] = {}
        self.manifest: Dict[str, Any] = {
            "format": FORMAT,
            "collected": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "files": [],
            "commands": [],
            "replaced": [],
            "left_out": [],
            "pseudonyms": False,
        }

    def note(self, kind: str, **facts: object) -> None:
        """Add an entry to a list of the manifest."""
        self.manifest[kind].append(facts)

    def text(self, name: str, text: str) -> str:
        """Add a file, with its secrets replaced; return its text."""
        for what, pattern in _SECRETS:
            for match in reversed(list(pattern.finditer(text))):
                line = text.count("\n", 0, match.start("secret")) + 1
                self.note("replaced", file=name, line=line, what=what)
                text = text[: match.start("secret")] + _REPLACED + text[match.end("secret") :]
        self.texts[name] = text
        return text

    def file(self, path: str) -> str:
        """Add a text file; return its text, or "" if it was left out."""
        name = "files" + path
        if name in self.texts:
            return self.texts[name]
        if any(fnmatch.fnmatch(os.path.basename(path), pattern) for pattern in _KEYS):
            self.note("left_out", what=path, why="a key")
            return ""
        try:
            with open(path, "rb") as file:
                content = file.read(_LARGEST + 1)
            mode = os.stat(path).st_mode & 0o777
        except OSError as error:
            self.note("left_out", what=path, why=error.strerror)
            return ""
        if b"\0" in content or len(content) > _LARGEST:
            why = "larger than {} bytes".format(_LARGEST) if b"\0" not in content else "not text"
            self.note("left_out", what=path, why=why)
            return ""
        self.note("files", file=name, mode="{:04o}".format(mode))
        return self.text(name, content.decode("utf-8", "surrogateescape"))

    def text_of(self, name: str) -> str:
        """Return what a command has printed; "" if nothing."""
        return self.texts.get("output/" + name, "")

    def output(self, name: str, command: List[str]) -> str:
        """Run a command; add what it prints, and return it."""
        return self.printed(name, command, _run(command))

    def printed(
        self, name: str, command: List[str], done: "subprocess.CompletedProcess[str]"
    ) -> str:
        """Add what a command has printed, and return it."""
        self.note(
            "commands",
            file="output/" + name,
            command=" ".join(map(shlex.quote, command)),
            exit=done.returncode,
            errors=done.stderr.strip()[-2000:],
        )
        return self.text("output/" + name, done.stdout) if done.stdout else ""

    def write(self, path: str) -> None:
        """Write the archive completely or not at all; nobody else can read it."""
        self.texts["manifest.json"] = json.dumps(self.manifest, indent=1, sort_keys=True) + "\n"
        descriptor, partial = tempfile.mkstemp(dir=os.path.dirname(path) or ".")
        try:
            with os.fdopen(descriptor, "wb") as file:
                with tarfile.open(fileobj=file, mode="w:gz") as tar:
                    for name in sorted(self.texts):
                        content = self.texts[name].encode("utf-8", "surrogateescape")
                        entry = tarfile.TarInfo(name)
                        entry.size, entry.mode, entry.mtime = len(content), 0o600, int(time.time())
                        tar.addfile(entry, io.BytesIO(content))
            os.rename(partial, path)
        except BaseException:
            os.unlink(partial)
            raise


def _run(command: List[str]) -> "subprocess.CompletedProcess[str]":
    """Run a command in the C locale and in UTC; one that is missing or hangs has failed."""
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="surrogateescape",
            timeout=_PATIENCE,
            check=False,
            env=dict(os.environ, LC_ALL="C", TZ="UTC", SLURM_TIME_FORMAT="standard"),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 127, "", str(error))


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _configuration(bundle: Bundle, directory: str) -> None:
    """Collect a configuration directory, the files that it includes, and its scripts."""
    pending = []
    for parent, directories, names in os.walk(directory):
        for hidden in [name for name in directories + names if name.startswith(".")]:
            bundle.note("left_out", what=os.path.join(parent, hidden), why="hidden")
        directories[:] = sorted(name for name in directories if not name.startswith("."))
        pending += [os.path.join(parent, name) for name in sorted(names) if name[0] != "."]
    seen: Set[str] = set()
    while pending:
        path = pending.pop(0)
        if path in seen:
            continue
        seen.add(path)
        text = bundle.file(path)
        if ".conf" not in os.path.basename(path) and not _INCLUDE.search(text):
            continue  # a script
        text = re.sub(r"(?m)^\s*#.*$", "", text)
        for value in _INCLUDE.findall(text):
            pending += _paths(value, directory)
        for value in _PROGRAM.findall(text):
            for word in value.strip('"').split(","):
                for script in _paths(word.split(" ")[0], directory):
                    bundle.file(script)


def _paths(value: str, directory: str) -> List[str]:
    """Return the files of an option's value: a path or pattern, or all files of a directory."""
    if "/" not in value and not os.path.isfile(os.path.join(directory, value)):
        return []  # a word such as INFINITE
    path = os.path.join(directory, value)
    if os.path.isdir(path):
        path = os.path.join(path, "*")
    return sorted(file for file in glob.glob(path) if os.path.isfile(file)) or [path]


def _accounting(bundle: Bundle) -> None:
    """Collect the accounting database's objects: tables, and a dump of each cluster."""
    clusters: List[str] = []
    for what, fields in _TABLES.items():
        rows = _table(bundle, what, fields.split())
        if what == "cluster":
            clusters = [row.split("|")[0] for row in rows[1:]]
            if not clusters:
                bundle.note("left_out", what="accounting", why="sacctmgr shows no cluster")
                return
    directory = tempfile.mkdtemp(prefix="harness-collect-")
    try:
        for cluster in clusters:
            path = os.path.join(directory, cluster)
            _run(["sacctmgr", "--readonly", "dump", cluster, "file=" + path])
            if os.path.exists(path):
                with open(path, encoding="utf-8", errors="surrogateescape") as file:
                    bundle.text("output/sacctmgr/dump-{}.cfg".format(cluster), file.read())
    finally:
        shutil.rmtree(directory)


def _table(bundle: Bundle, what: str, fields: List[str]) -> List[str]:
    """Collect a table of sacctmgr with the fields that its release knows; return its lines."""
    name = "sacctmgr/{}.txt".format(what.split()[0])
    while True:
        command = ["sacctmgr", "--parsable2", "--readonly", "show", *what.split()]
        command.append("format=" + ",".join(fields))
        done = _run(command)
        unknown = re.search(r"Unknown field '([^']+)'", done.stderr + done.stdout)
        missing = unknown.group(1).lower() if unknown else ""
        known = [field for field in fields if field.lower() != missing]
        if known == fields:
            break
        fields = known
    # Releases have different headings for the same field.
    rows = bundle.printed(name, command, done).splitlines()[1:]
    if rows:
        rows.insert(0, "|".join(fields))
        bundle.texts["output/" + name] = "\n".join(rows) + "\n"
    return rows


def _column(bundle: Bundle, table: str, name: str) -> Set[str]:
    """Return the words in a column of a table of sacctmgr or sacct."""
    header, *rows = bundle.text_of(table).splitlines() or [""]
    columns = header.split("|")
    if name not in columns:
        return set()
    number = columns.index(name)
    cells = (row.split("|") for row in rows)
    return {
        word for cell in cells if len(cell) > number for word in cell[number].split(",") if word
    }


def _users(bundle: Bundle) -> None:
    """Collect uid, gid and groups of the users that the accounting database names."""
    users = {}
    groups = {}
    for name in sorted(
        _column(bundle, "sacctmgr/assoc.txt", "User") | _column(bundle, "sacctmgr/user.txt", "User")
    ):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            bundle.note("left_out", what="user " + name, why="unknown on this host")
            continue
        own = []
        for gid in os.getgrouplist(name, entry.pw_gid):
            try:
                own.append(grp.getgrgid(gid).gr_name)
            except KeyError:
                continue
            groups[own[-1]] = {"gid": gid}
        users[name] = {"uid": entry.pw_uid, "gid": entry.pw_gid, "groups": own}
    text = json.dumps({"users": users, "groups": groups}, indent=1, sort_keys=True)
    bundle.text("output/users.json", text + "\n")


def _trace(bundle: Bundle, days: int) -> None:
    """Collect the jobs of the last days."""
    known = {field.lower() for field in _run(["sacct", "--helpformat"]).stdout.split()}
    fields = [field for field in _TRACE.split() if field.lower() in known]
    command = "sacct --allusers --allclusters --allocations --duplicates --parsable2"
    period = ["--starttime=now-{}days".format(days), "--format=" + ",".join(fields)]
    done = _run(command.split() + period)
    done.stdout = with_dependencies(done.stdout)
    bundle.printed("jobs.txt", command.split() + period, done)


def with_dependencies(table: str) -> str:
    """Return a table of sacct with the dependency in place of the command line."""
    header, _, rows = table.partition("\n")
    names = header.split("|")
    if names[-1] != "SubmitLine":
        return table
    lines = ["|".join([*names[:-1], "Dependency"])]
    for row in rows.splitlines():
        cells = row.split("|", len(names) - 1)
        if len(cells) == len(names):  # others are further lines of a command line
            match = _DEPENDENCY.search(cells[-1])
            lines.append("|".join([*cells[:-1], match.group(1) if match else ""]))
    return "\n".join(lines) + "\n"


class Pseudonyms:
    """Replaces names by numbered ones, the same everywhere."""

    def __init__(self, bundle: Bundle) -> None:
        self._of: Dict[str, str] = {}
        self._jobs: Dict[str, str] = {}
        texts = bundle.texts
        conf = "\n".join(
            text
            for name, text in texts.items()
            if ".conf" in name or name.startswith("output/scontrol/")
        )
        limits = "\n".join(text for name, text in texts.items() if "/security/" in name)
        limited = _LIMITED.findall(limits)
        self._add_hosts(conf)
        stems = set(self._of)
        users = json.loads(texts.get("output/users.json", '{"users": {}, "groups": {}}'))
        # Names of the accounting database are numbered first and separately, so that bundles of
        # several clusters agree.
        self._add("user-{}", _all_in(bundle, "User", "assoc", "user"))
        others = set(users["users"]) | _column(bundle, "jobs.txt", "User")
        others |= {name.lstrip("-+") for name in _listed(_USERS, conf)}
        self._add("other-user-{}", others | {name for group, name in limited if not group})
        before = set(self._of)
        known = _all_in(bundle, "Account", "account", "assoc")
        self._add("account-{}", {name.lower() for name in known})
        more = _listed(_ACCOUNTS, conf) | _column(bundle, "jobs.txt", "Account")
        self._add("other-account-{}", {name.lstrip("-+").lower() for name in more})
        accounts = set(self._of) - before
        named = _listed(_GROUPS, conf) | {name for group, name in limited if group}
        self._add("group-{}", set(users["groups"]) | named)
        # A stem may be followed by a number, a hostlist or a domain. Slurm stores accounts in lower
        # case, but slurm.conf and scripts may write them in upper case.
        self._words = re.compile(
            r"(?:(?<![\w-])|(?<=[=,]-))"
            r"(?:(?:{})(?![A-Za-z_-])|(?:(?:{})|(?i:{}))(?![\w-]))".format(
                _alternatives(stems),
                _alternatives(set(self._of) - stems - accounts),
                _alternatives(accounts),
            )
        )

    def _add_hosts(self, conf: str) -> None:
        """Add the names of hosts without their numbers, and domains.

        n[1-4] and n3 become host-a[1-4] and host-a3.
        """
        hosts = _listed(_HOSTS, conf) | {socket.getfqdn()}
        hosts = {host for host in hosts if not _is_address(host)}
        domains = {host.partition(".")[2] for host in hosts} | set(_MAIL_DOMAIN.findall(conf))
        stems = {re.sub(r"[\d\[].*", "", host.partition(".")[0]) for host in hosts}
        self._add("domain{}.invalid", {domain.rstrip(".") for domain in domains})
        self._add("host-{}", {stem for stem in stems if re.match(r"[A-Za-z][\w-]*$", stem)})

    def _add(self, form: str, names: Iterable[str]) -> None:
        """Add names, numbered in alphabetical order."""
        for number, name in enumerate(sorted(set(names) - {""})):
            if name.lower() not in _WORDS and name not in self._of:
                self._of[name] = form.format(_letters(number))

    def of(self, text: str) -> str:
        """Return a text with all names replaced."""
        return self._words.sub(self._pseudonym, text)

    def _pseudonym(self, match: "re.Match[str]") -> str:
        word = match.group(0)
        if word in self._of:
            return self._of[word]
        # An option of slurm.conf may have the name of an account.
        is_option = match.string.startswith("=", match.end())
        return word if is_option else self._of[word.lower()]

    def of_all(self, data: Any) -> Any:
        """Return data with all names replaced in its texts."""
        if isinstance(data, dict):
            return {key: self.of_all(value) for key, value in data.items()}
        if isinstance(data, list):
            return [self.of_all(value) for value in data]
        return self.of(data) if isinstance(data, str) else data

    def of_jobs(self, table: str) -> str:
        """Return a table of sacct with the names of jobs replaced."""
        rows = [row.split("|") for row in table.splitlines()]
        if rows and "JobName" in rows[0]:
            column = rows[0].index("JobName")
            for row in rows[1:]:
                job = "job{}".format(len(self._jobs) + 1)
                row[column] = self._jobs.setdefault(row[column], job)
        return "".join("|".join(row) + "\n" for row in rows)


def _listed(pattern: "re.Pattern[str]", text: str) -> Set[str]:
    """Return the names in the lists that are values of options; a hostlist is a single name."""
    lists = (found.strip('"') for found in pattern.findall(text))
    return {word for found in lists for word in re.split(r",(?![^\[]*\])", found) if word}


def _all_in(bundle: Bundle, column: str, *tables: str) -> Set[str]:
    """Return the words in a column of several tables of sacctmgr."""
    return {
        word
        for table in tables
        for word in _column(bundle, "sacctmgr/{}.txt".format(table), column)
    }


def _letters(number: int) -> str:
    """Return a, b, ..., z, aa, ab, ... for 0, 1, ..., 25, 26, 27, ..."""
    before, last = divmod(number, 26)
    return (_letters(before - 1) if before else "") + chr(ord("a") + last)


def _alternatives(words: Iterable[str]) -> str:
    """Return a regular expression for any of some words, the longest first, or for nothing."""
    return "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True)) or "(?!)"


def _is_address(host: str) -> bool:
    return bool(re.match(r"[\d.]+$|.*:", host))


def _hide(bundle: Bundle) -> None:
    """Replace names in all files of a bundle, in their paths, and in the manifest."""
    pseudonyms = Pseudonyms(bundle)
    jobs = "output/jobs.txt"
    if jobs in bundle.texts:
        bundle.texts[jobs] = pseudonyms.of_jobs(bundle.texts[jobs])
    bundle.texts = {pseudonyms.of(name): pseudonyms.of(text) for name, text in bundle.texts.items()}
    bundle.manifest = pseudonyms.of_all(bundle.manifest)
    bundle.manifest["pseudonyms"] = True


def collect(directory: str, days: int, pseudonyms: bool) -> Bundle:
    """Return the bundle of this site."""
    bundle = Bundle()
    bundle.manifest.update(host=socket.getfqdn(), configuration=directory)
    _say("configuration: " + directory)
    _configuration(bundle, directory)
    for pattern in SYSTEM_FILES:
        for path in sorted(glob.glob(pattern)):
            bundle.file(path)
    _say("Slurm's commands")
    for name, command in _COMMANDS.items():
        bundle.output(name, shlex.split(command))
    for program, command in _PACKAGES.items():
        if shutil.which(program):
            bundle.output("packages.txt", shlex.split(command))
    _say("accounting")
    _accounting(bundle)
    _users(bundle)
    if re.search(r"(?m)^PriorityType\s*=.*multifactor", bundle.text_of("scontrol/config.txt")):
        bundle.output("sshare.txt", shlex.split(_USAGE))
    if days:
        _say("jobs of {} days".format(days))
        _trace(bundle, days)
    if pseudonyms:
        _hide(bundle)
    return bundle


def _configuration_directory() -> str:
    """Return the directory of the slurm.conf that Slurm's commands read here."""
    shown = re.search(r"(?m)^SLURM_CONF\s*=\s*(\S+)", _run(["scontrol", "show", "config"]).stdout)
    path = shown.group(1) if shown else os.environ.get("SLURM_CONF", "/etc/slurm/slurm.conf")
    return os.path.dirname(path)


def main(arguments: Optional[List[str]] = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="harness-collect",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="bundle to write; default: site-DATE.tar.gz"
    )
    parser.add_argument(
        "--conf",
        metavar="DIR",
        help="directory of slurm.conf; default: as `scontrol show config` says",
    )
    parser.add_argument(
        "--days", metavar="N", type=int, default=0, help="also collect the jobs of the last N days"
    )
    parser.add_argument("--pseudonyms", action="store_true", help="replace names; see above")
    options = parser.parse_args(arguments)
    directory = os.path.abspath(options.conf or _configuration_directory())
    if not os.path.isfile(os.path.join(directory, "slurm.conf")):
        parser.error("no slurm.conf in {}; name its directory with --conf".format(directory))
    name = "site-{}.tar.gz".format(time.strftime("%Y%m%d-%H%M%S"))
    path = os.path.abspath(options.output or name)
    if not os.access(os.path.dirname(path), os.W_OK):
        parser.error("cannot write to {}".format(os.path.dirname(path)))
    bundle = collect(directory, options.days, options.pseudonyms)
    bundle.write(path)
    manifest = bundle.manifest
    _say(
        "{}: {} files; {} values replaced, {} files or users left out: see manifest.json".format(
            path, len(bundle.texts), len(manifest["replaced"]), len(manifest["left_out"])
        )
    )
    failed = [entry for entry in manifest["commands"] if entry["exit"] != 0]
    for entry in failed:
        _say("failed: {}: {}".format(entry["command"], entry["errors"].splitlines()[-1:]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
