"""What `harness collect` prints: a script that collects a site's configuration into a bundle."""

from __future__ import annotations

import ast
import json
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.errors import UsageError
from harness.simulation import usage
from harness.site import collect

SLURM_CONF = """\
ClusterName=site
SlurmctldHost=login-head.uni.example
AccountingStoragePass=hush
Include {site}/elsewhere/nodes.conf
Prolog={site}/scripts/prolog.d/*
HealthCheckProgram={site}/scripts/health
#Epilog={site}/scripts/unused
PrologFlags=Alloc
"""
# What the commands of a made-up site print.
COMMANDS = {
    "scontrol": """\
case $* in
*"show config") echo "PriorityType            = priority/multifactor" ;;
*"show node") echo "NodeName=quark1 NodeAddr=quark1 State=IDLE" ;;
*) echo ;;
esac""",
    "sacctmgr": """\
case $* in
*Comment*) echo " Unknown field 'comment'" >&2; exit 1 ;;
*"show cluster"*) printf 'Cluster|Federation\\nsite|\\n' ;;
*"show assoc"*) printf 'Cluster|Account|User\\nsite|physics|\\nsite|physics|alice\\n' ;;
*"show account"*) printf 'Account|Descr\\nphysics|physics\\n' ;;
*"show user"*) printf 'User|Admin\\nalice|None\\n' ;;
*dump*) echo "User - 'alice'" > "${4#file=}" ;;
esac""",
    "sshare": r"""printf 'Account|User|RawUsage\nroot||70\n physics|alice|70\n'""",
    "sacct": """\
case $* in
--helpformat) echo JobIDRaw User JobName Account ;;
*) printf 'JobIDRaw|User|JobName|Account\\n7|alice|thesis|physics\\n' ;;
esac""",
}

Collect = Callable[..., dict[str, str]]


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A made-up site: slurm.conf, what it names, and Slurm's commands."""
    files = {
        "etc/slurm.conf": SLURM_CONF.format(site=tmp_path),
        "etc/job_submit.lua": "-- password = opensesame\n",
        "etc/.git/config": "x",
        "etc/jwt_hs256.key": "x",
        "etc/binary": "a\0b",
        "elsewhere/nodes.conf": "NodeName=quark[1-4] CPUs=2\n",
        "scripts/prolog.d/10-scratch": "#!/bin/sh\nmkdir /scratch/alice\n",
        "scripts/health": '#!/bin/sh\ncurl -H "Authorization: Bearer abcdefgh12345" quark3\n',
        "scripts/unused": "x",
        **{f"bin/{name}": f"#!/bin/sh\n{text}\n" for name, text in COMMANDS.items()},
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    return tmp_path


@pytest.fixture
def collected(site: Path, monkeypatch: pytest.MonkeyPatch) -> Collect:
    """Collect from the site; return the texts in the bundle by name, without the site's path."""
    monkeypatch.setenv("PATH", f"{site}/bin:/usr/bin:/bin")

    def run(*options: str) -> dict[str, str]:
        path = site / "bundle.tar.gz"
        assert collect.main(["--conf", f"{site}/etc", "-o", str(path), *options]) == 0
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with tarfile.open(path) as tar:
            texts = {
                member.name: content.read().decode()
                for member in tar
                if (content := tar.extractfile(member))
            }
        return {name.replace(str(site), ""): text for name, text in texts.items()}

    return run


def test_script_is_valid_for_python_3_6() -> None:
    ast.parse(Path(collect.__file__).read_text(), feature_version=(3, 6))


def test_bundle_has_configuration_includes_and_scripts_but_no_secrets(
    collected: Collect, site: Path
) -> None:
    bundle = collected("--days", "2")
    assert {name for name in bundle if name.startswith("files/e") and "/etc/" not in name} == {
        "files/elsewhere/nodes.conf"
    }
    assert {name for name in bundle if name.startswith(("files/scripts", "files/etc/s"))} == {
        "files/etc/slurm.conf",
        "files/scripts/health",
        "files/scripts/prolog.d/10-scratch",
    } | {name for name in bundle if name.startswith("files/etc/security")}
    text = "".join(bundle.values())
    assert not [word for word in ("hush", "opensesame", "abcdefgh12345") if word in text]
    manifest = json.loads(bundle["manifest.json"])
    replaced = {
        (entry["file"].replace(str(site), ""), entry["line"]) for entry in manifest["replaced"]
    }
    assert replaced == {
        ("files/etc/slurm.conf", 3),
        ("files/etc/job_submit.lua", 1),
        ("files/scripts/health", 2),
    }
    left_out = {
        entry["what"].replace(str(site), ""): entry["why"] for entry in manifest["left_out"]
    }
    assert left_out["/etc/jwt_hs256.key"] == "a key"
    assert left_out["/etc/binary"] == "not text"
    assert left_out["/etc/.git"] == "hidden"
    assert left_out["user alice"] == "unknown on this host"


def test_field_that_sacctmgr_does_not_know_is_left_out(collected: Collect) -> None:
    bundle = collected()
    header, *rows = bundle["output/sacctmgr/assoc.txt"].splitlines()
    assert header.startswith("Cluster|Account|User|Partition|ParentName|")
    assert "Comment" not in header
    assert rows[1] == "site|physics|alice"
    assert bundle["output/sacctmgr/dump-site.cfg"] == "User - 'alice'\n"
    assert "output/jobs.txt" not in bundle


@pytest.mark.parametrize("options", [(), ("--pseudonyms",)])
def test_bundle_has_the_fair_share_usage(
    collected: Collect, site: Path, options: tuple[str, ...]
) -> None:
    collected(*options)
    account, user = ("account-a", "user-a") if options else ("physics", "alice")
    assert usage.read(site / "bundle.tar.gz") == {(account, user): 70.0}


def test_usage_is_collected_only_where_slurm_computes_fair_share(
    collected: Collect, site: Path
) -> None:
    scontrol = site / "bin" / "scontrol"
    scontrol.write_text(scontrol.read_text().replace("multifactor", "basic"))
    assert "output/sshare.txt" not in collected()
    with pytest.raises(UsageError, match="has no fair-share usage"):
        usage.read(site / "bundle.tar.gz")


def test_pseudonyms_are_the_same_in_all_files(collected: Collect) -> None:
    bundle = collected("--pseudonyms", "--days", "2")
    text = "".join(bundle.values())
    names = ("alice", "physics", "thesis", "quark", "login-head", "uni.example")
    assert not [name for name in names if name in text]
    user = bundle["output/sacctmgr/assoc.txt"].splitlines()[2].split("|")[2]
    assert user in bundle["files/scripts/prolog.d/10-scratch"]
    node = bundle["output/scontrol/nodes.txt"].split()[0].removeprefix("NodeName=")
    assert bundle["files/elsewhere/nodes.conf"].startswith(f"NodeName={node[:-1]}[1-4] ")
    assert f"{node[:-1]}3" in bundle["files/scripts/health"]


# A site whose names are in every kind of file, in different notations.
NAMED = {
    "etc/slurm.conf": """\
ClusterName=site
SlurmctldHost=charm-head(10.0.0.1)
AccountingStorageHost=strange.uni.example
MailDomain=post.example
NodeName=quark[1-4],lepton7 CPUs=2 Gres=gpu:1
nodename=boson NodeHostName=muon.uni.example
PartitionName=one Nodes=ALL AllowAccounts=Physics,optics AllowGroups=staff,guests Default=YES
PartitionName=two Nodes=quark[1-2] AllocNodes=workpc1,workpc2 DenyAccounts=history
""",
    "etc/gres.conf": "NodeName=quark[1-4] Name=gpu File=/dev/zero\n",
    "etc/topology.conf": "SwitchName=s1 Nodes=quark[1-4],lepton7\n",
    "etc/job_submit.lua": 'if job.account == "Optics" then log("alice on quark03") end\n',
    "etc/slurmdbd.conf": "DbdHost=strange\nStorageHost=strange.uni.example\n",
}
NAMED_COMMANDS = {
    "scontrol": """\
case $* in
*"show node") echo "NodeName=dyna8 NodeAddr=dyna8.uni.example State=IDLE Reason=bob [bob@now]" ;;
*reservation) echo "ReservationName=r Nodes=quark1 Users=-mallory,bob Accounts=music Groups=crew" ;;
*"show config") echo "SlurmctldHost[0]          = charm-head(10.0.0.1)" ;;
*) echo ;;
esac""",
    "sacctmgr": """\
case $* in
*"show cluster"*) printf 'Cluster|Federation\\nsite|\\n' ;;
*"show assoc"*) printf 'Cluster|Account|User\\nsite|physics|\\nsite|optics|alice\\n' ;;
*"show account"*) printf 'Account|Descr|Org|Coord\\noptics|optics|physics|bob\\n' ;;
*"show user"*) printf 'User|Admin|Def|Coord\\nalice|None|optics|physics\\nbob|None||\\n' ;;
*dump*) echo "User - 'alice':DefaultAccount='optics'" > "${4#file=}" ;;
esac""",
    "sacct": """\
case $* in
--helpformat) echo JobIDRaw User JobName Account ;;
*) printf 'JobIDRaw|User|JobName|Account\\n7|gone|thesis of alice|closed\\n' ;;
esac""",
}


def test_no_name_is_left_anywhere_in_a_bundle_with_pseudonyms(
    collected: Collect, site: Path
) -> None:
    for name, text in NAMED.items():
        (site / name).write_text(text)
    for name, text in NAMED_COMMANDS.items():
        (site / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
    bundle = collected("--pseudonyms", "--days", "2")
    text = "\n".join([*bundle, *bundle.values()]).lower()
    users = ("alice", "bob", "mallory", "gone")
    hosts = (
        "charm",
        "strange",
        "quark",
        "lepton",
        "boson",
        "muon",
        "workpc",
        "dyna",
        "uni.example",
    )
    accounts = ("physics", "optics", "history", "music", "closed")
    names = (*users, *hosts, *accounts, "staff", "guests", "crew", "thesis", "post.example")
    assert not [name for name in names if name in text]
    lua = bundle["files/etc/job_submit.lua"]
    header, row = bundle["output/sacctmgr/account.txt"].splitlines()
    columns = dict(zip(header.split("|"), row.split("|"), strict=False))
    assert f'"{columns["Account"]}"' in lua
    assert f"'{columns['Account']}'" in bundle["output/sacctmgr/dump-site.cfg"]
    node = bundle["files/etc/gres.conf"].split("[")[0].removeprefix("NodeName=")
    assert f"on {node}03" in lua
    assert f"Nodes={node}[1-4]," in bundle["files/etc/topology.conf"]
    assert "Gres=gpu:1" in bundle["files/etc/slurm.conf"]


def test_pseudonyms_of_the_accounting_database_do_not_depend_on_the_cluster(
    collected: Collect, site: Path
) -> None:
    more = COMMANDS["sacctmgr"].replace("site|physics|alice", r"site|a|abe\nsite|physics|alice")
    (site / "bin/sacctmgr").write_text(f"#!/bin/sh\n{more}\n")
    first = collected("--pseudonyms")["output/sacctmgr/assoc.txt"]
    # The nodes of another cluster have the name of a user.
    (site / "etc/slurm.conf").write_text("ClusterName=two\nSlurmctldHost=zoe\nNodeName=abe[1-2]\n")
    second = collected("--pseudonyms")["output/sacctmgr/assoc.txt"]
    alice = [row.split("|")[2] for row in first.splitlines()][-1]
    assert [row.split("|")[2] for row in second.splitlines()][-1] == alice
    assert "abe" not in first + second


def test_missing_slurm_conf_is_a_usage_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        collect.main(["--conf", str(tmp_path)])
    assert ended.value.code == 2
    assert f"no slurm.conf in {tmp_path}" in capsys.readouterr().err


def test_trace_has_the_dependency_and_nothing_else_of_the_command_line() -> None:
    table = """\
JobID|State|SubmitLine
7|COMPLETED|sbatch --dependency=afterok:6 --export=TOKEN=x job.sh
8|COMPLETED|sbatch -d singleton a|b
9|FAILED|sbatch --wrap echo one
echo two
10|COMPLETED|
"""
    assert (
        collect.with_dependencies(table)
        == """\
JobID|State|Dependency
7|COMPLETED|afterok:6
8|COMPLETED|singleton
9|FAILED|
10|COMPLETED|
"""
    )
