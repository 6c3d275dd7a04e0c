"""Site data: secrets stay behind, and data that does not fit the scenario is refused."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path

import pytest

from harness import scenario
from harness.capabilities import OWN_MACHINES
from harness.errors import UsageError
from harness.plan import make_plan
from harness.shipped_files import SCENARIOS
from harness.site import site_data
from harness.site.site_data import SiteData

PLAN = make_plan("ha", scenario.load(SCENARIOS / "ha.yml"), OWN_MACHINES)
CLUSTER = next(iter(PLAN.scenario.clusters))
OLD = f"""-- a dump of mysqldump
CREATE TABLE `{CLUSTER}_job_table` (
  `job_db_inx` bigint
);
INSERT INTO `{CLUSTER}_job_table` VALUES (1),(2);
CREATE TABLE `{CLUSTER}_job_script_table` (
  `batch_script` longtext
);
INSERT INTO `{CLUSTER}_job_script_table` VALUES (1,'#!/bin/sh\\nTOKEN=sesame; run;');
INSERT INTO `{CLUSTER}_job_env_table` VALUES
(1,'TOKEN=sesame;'),
(2,'TOKEN=sesame');
INSERT INTO `{CLUSTER}_step_table` VALUES (3);
"""
ALL = f"""CREATE DATABASE /*!32312 IF NOT EXISTS*/ `mysql`;
USE `mysql`;
INSERT INTO `user` VALUES ('root');
CREATE DATABASE /*!32312 IF NOT EXISTS*/ `slurm`;
USE `slurm`;
{OLD}
"""


def dump(directory: Path, text: str = OLD) -> Path:
    path = directory / "dump.sql"
    path.write_text(text)
    return path


@pytest.mark.parametrize("text", [OLD, ALL], ids=["one database", "all databases"])
def test_scripts_environments_and_other_databases_stay_behind(tmp_path: Path, text: str) -> None:
    kept = b"".join(site_data._scrubbed(dump(tmp_path, text))).decode()
    assert "sesame" not in kept
    assert "root" not in kept
    assert "CREATE DATABASE" not in kept
    assert f"INSERT INTO `{CLUSTER}_job_table` VALUES (1),(2);" in kept
    assert f"INSERT INTO `{CLUSTER}_step_table` VALUES (3);" in kept
    assert f"CREATE TABLE `{CLUSTER}_job_script_table`" in kept


def test_dump_may_be_compressed(tmp_path: Path) -> None:
    path = tmp_path / "dump.sql.gz"
    path.write_bytes(gzip.compress(OLD.encode()))
    site_data.examine(SiteData(path), PLAN)
    assert b"".join(site_data._scrubbed(path)) == b"".join(site_data._scrubbed(dump(tmp_path)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SELECT 1;\n", "has no database of slurmdbd"),
        (
            OLD.replace(f"{CLUSTER}_", "elsewhere_"),
            "is the database of elsewhere, but the scenario has",
        ),
        (ALL + ALL.replace("`slurm`", "`slurm2`"), "has 2 databases of slurmdbd"),
    ],
)
def test_dump_of_something_else_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        site_data.examine(SiteData(dump(tmp_path, text)), PLAN)


def state(directory: Path, cluster: str = CLUSTER) -> Path:
    job = directory / "hash.7" / "job.7"
    job.mkdir(parents=True)
    for path in (
        job / "script",
        job / "environment",
        directory / "jwt_hs256.key",
        directory / "site.pem",
    ):
        path.write_text("sesame")
    (directory / "job_state").write_bytes(b"\x00\x01")
    (directory / "clustername").write_text(f"{cluster}|710\n")
    return directory


def test_scripts_environments_and_keys_of_a_state_stay_behind(tmp_path: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(site_data._state_tar(state(tmp_path)))) as tar:
        members = {member.name: tar.extractfile(member).read() for member in tar.getmembers()}  # type: ignore[union-attr]
    assert {*members} == {
        "clustername",
        "job_state",
        "hash.7/job.7/script",
        "hash.7/job.7/environment",
    }
    assert members["clustername"] == CLUSTER.encode()
    assert members["job_state"] == b"\x00\x01"
    assert members["hash.7/job.7/script"] == b"#!/bin/sh\n"
    assert b"sesame" not in b"".join(members.values())


def test_file_that_is_not_a_slurmctld_state_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no file clustername"):
        site_data.examine(SiteData(states={CLUSTER: tmp_path}), PLAN)
    with pytest.raises(UsageError, match="is the state of elsewhere"):
        site_data.examine(SiteData(states={CLUSTER: state(tmp_path, "elsewhere")}), PLAN)


def test_users_with_jobs_are_created_except_impossible_ones() -> None:
    rows = "dave\t3001\nroot\t0\nslurm\t64030\nMax Mustermann\t3002\nerin\t3001\nfrank\t100003\n"
    assert {name: user.uid for name, user in site_data._users(rows, PLAN).items()} == {
        "dave": 3001,
        "frank": 100003,
    }
