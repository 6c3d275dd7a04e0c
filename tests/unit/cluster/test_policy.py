"""Jobs that a policy must accept or refuse."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import scenario
from harness.capabilities import CONTAINERS
from harness.cluster import policy
from harness.cluster.policy import Submission
from harness.plan import Plan, make_plan

SITE = """\
clusters:
  one:
    controller: ctl
    hosts: ctl
    nodes: [{name: "n[1-4]", cpus: 2}]
    partitions:
      main: {default: true, options: {MaxTime: "1:00:00"}}
      long: {options: {AllowAccounts: physics, DenyQos: high}}
      staff: {nodes: "n1", options: {AllowGroups: staff}}
    options:
      AccountingStorageEnforce: limits,qos
      PreemptType: preempt/qos
      PreemptMode: REQUEUE
      Licenses: "matlab:2,ansys,matlab:3"
    reservations:
      course: {StartTime: now, Duration: 60, Nodes: n4, Users: "bob,dora"}
      lab: {StartTime: now, Duration: 60, Nodes: n4, Accounts: physics}
      others: {StartTime: now, Duration: 60, Nodes: n4, Accounts: -physics}
      moving: {StartTime: now+60, Duration: 60, Nodes: n4, Users: bob, Flags: "MAINT,TIME_FLOAT"}
accounting:
  host: ctl
  accounts:
    root: {options: {MaxSubmitJobs: 50}}
    physics: {options: {GrpTRES: "cpu=6"}}
    chemistry: {options: {MaxWall: "10", GrpTRES: "cpu=100"}}
  qos:
    high: {options: {Preempt: low, MaxTRESPerUser: cpu=3, MaxWall: "30"}}
    low: {options: {Flags: DenyOnLimit, MinTRESPerJob: cpu=2, MaxSubmitJobsPerUser: 3}}
users:
  alice: {uid: 2001, accounts: [physics], qos: [high, low]}
  bob: {uid: 2002, accounts: [chemistry]}
groups:
  staff: {gid: 7001, users: [bob]}
"""


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    path = tmp_path / "site.yml"
    path.write_text(SITE)
    return make_plan("site", scenario.load(path), CONTAINERS)


@pytest.fixture
def found(plan: Plan) -> dict[str, Submission]:
    return {submission.what: submission for submission in policy.submissions(plan)}


def test_each_partition_is_asked_by_those_whom_it_accepts_and_those_whom_it_does_not(
    found: dict[str, Submission],
) -> None:
    of_partitions = [what for what in found if what.startswith("partition ")]
    assert of_partitions == [
        "partition main accepts alice with account physics and QOS high",
        "partition long refuses alice with account physics and QOS high",
        "partition long accepts alice with account physics and QOS low",
        "partition long refuses bob with account chemistry and QOS normal",
        "partition staff refuses alice with account physics and QOS high",
        "partition staff accepts bob with account chemistry and QOS normal",
    ]


@pytest.mark.parametrize(("release", "verb"), [("22.05", "refuses"), ("24.11", "accepts")])
def test_partition_accepts_accounts_below_those_that_it_lists_since_23_02(
    release: str, verb: str, tmp_path: Path
) -> None:
    path = tmp_path / "site.yml"
    path.write_text(SITE.replace("chemistry: {", "chemistry: {parent: physics, ", 1))
    plan = make_plan("site", scenario.load(path, [release]), CONTAINERS)
    of_bob = [
        one.what for one in policy.submissions(plan) if "long" in one.what and "bob" in one.what
    ]
    assert all(what.startswith(f"partition long {verb}") for what in of_bob)
    assert of_bob or verb == "accepts"


def test_reservations_are_asked_by_those_whom_they_accept_and_those_whom_they_do_not(
    found: dict[str, Submission],
) -> None:
    of_reservations = {
        what: submission.reason
        for what, submission in found.items()
        if what.startswith("reservation ")
    }
    no = "Access denied to requested reservation|Requested reservation is invalid"
    assert of_reservations == {
        "reservation course refuses alice with account physics": no,
        "reservation course accepts bob with account chemistry": "",
        "reservation lab accepts alice with account physics": "",
        "reservation lab refuses bob with account chemistry": no,
        "reservation others refuses alice with account physics": no,
        "reservation others accepts bob with account chemistry": "",
    }
    assert found["reservation lab accepts alice with account physics"].options == (
        "--reservation=lab",
        "--partition=main",
        "--account=physics",
        "--qos=high",
        "--time=1",
        "--ntasks=1",
    )


def test_reservation_for_an_account_is_for_those_below_it(tmp_path: Path) -> None:
    path = tmp_path / "site.yml"
    path.write_text(SITE.replace("chemistry: {", "chemistry: {parent: physics, ", 1))
    plan = make_plan("site", scenario.load(path), CONTAINERS)
    of_lab = [
        submission.what
        for submission in policy.submissions(plan)
        if "reservation lab" in submission.what
    ]
    assert of_lab == ["reservation lab accepts alice with account physics"]


def test_more_licenses_are_requested_than_there_are(found: dict[str, Submission]) -> None:
    assert {
        what: submission.options[0] for what, submission in found.items() if "licenses" in what
    } == {
        "6 of 5 licenses matlab": "--licenses=matlab:6",
        "2 of 1 licenses ansys": "--licenses=ansys:2",
    }


def test_each_kind_of_limit_is_exceeded_by_the_smallest_job_with_all_its_reasons(
    found: dict[str, Submission],
) -> None:
    limits = {
        what.partition(" of ")[0]: (submission.options[2:], submission.reason)
        for what, submission in found.items()
        if "limit" in what
    }
    assert limits.keys() == {
        "QOS limit MaxTRESPU cpu=3",
        "QOS limit MaxWall=1800",
        "QOS limit MinTRES cpu=2",
        "QOS limit MaxSubmitPU=3",
        "Assoc limit GrpTRES cpu=6",
        "Assoc limit MaxSubmit=50",
        "Assoc limit MaxWall=600",
    }, "chemistry's CPUs are more than the cluster has"
    options, reason = limits["Assoc limit GrpTRES cpu=6"]
    assert options[-1] == "--ntasks=7"
    assert re.search(reason, "AssocGrpCpuLimit")
    assert not re.search(reason, "AssocGrpCPURunMinutesLimit")
    options, reason = limits["QOS limit MinTRES cpu=2"]
    assert "--ntasks=1" in options
    assert re.search(reason, "QOSMinCpuNotSatisfied")


def test_pairs_of_qos_preempt_if_a_user_has_both(plan: Plan) -> None:
    (pair,) = policy.preemptions(plan)
    assert (pair.user, pair.high, pair.low, pair.mode) == ("alice", "high", "low", "requeue")


@pytest.fixture
def weighted(tmp_path: Path) -> Callable[..., list[tuple[str, str, str, float]]]:
    """Return what differs between two jobs: factor, first, second, and their priority."""

    def orders(**options: str) -> list[tuple[str, str, str, float]]:
        lines = "".join(f"      {name}: {value}\n" for name, value in options.items())
        text = SITE.replace("    options:\n", f"    options:\n{lines}")
        text = text.replace("DenyQos: high", "PriorityJobFactor: 8")
        path = tmp_path / "weighted.yml"
        path.write_text(text.replace("Preempt: low,", "Preempt: low, Priority: 40,"))
        plan = make_plan("site", scenario.load(path), CONTAINERS)
        return [
            (order.factor, *map("/".join, order.columns), order.difference)
            for order in policy.orders(plan)
        ]

    return orders


def test_priority_of_two_jobs_differs_by_the_weight_of_their_factor(
    weighted: Callable[..., list[tuple[str, str, str, float]]],
) -> None:
    always = [
        ("nice value", "main/high", "main/high", 50),
        ("QOS", "main/high", "main/normal", 1000),
    ]
    weights = {"PriorityWeightQOS": "1000", "PriorityWeightPartition": "400"}
    assert weighted(**weights) == [
        *always,
        ("partition", "long/high", "main/high", 350),
    ]
    assert weighted(**weights, PriorityFlags="NO_NORMAL_PART") == [
        *always,
        ("partition", "long/high", "main/high", 2800),
    ]
    assert weighted(**weights, PriorityFlags="ACCRUE_ALWAYS") == []
    assert weighted(**weights, PriorityType="priority/basic") == []
    assert weighted(PriorityWeightAge="1000") == []


@pytest.mark.parametrize(
    ("options", "differences"),
    [
        # 8 CPUs and 4 nodes in the cluster, and in both partitions.
        ({"PriorityWeightJobSize": "1600"}, {"CPUs": 100}),
        ({"PriorityWeightJobSize": "1600", "PriorityFavorSmall": "YES"}, {"CPUs": 100}),
        ({"PriorityWeightJobSize": "9", "PriorityFlags": "SMALL_RELATIVE_TO_TIME"}, {}),
        ({"PriorityWeightTRES": "CPU=800"}, {"CPUs": 100}),
        ({"PriorityWeightTRES": "CPU=80", "PriorityFlags": "NO_NORMAL_TRES"}, {"CPUs": 80}),
        ({"PriorityWeightJobSize": "1600", "PriorityWeightTRES": "CPU=800"}, {"CPUs": 200}),
        ({"PriorityWeightTRES": "CPU=800,Billing=1"}, {}),
        ({"PriorityWeightTRES": "cpu=800k"}, {}),
        ({"PriorityWeightTRES": "cpu=800,mem=-100M"}, {}),
        ({"PriorityWeightTRES": "cpu=800,mem="}, {"CPUs": 100}),
    ],
)
def test_priority_of_two_jobs_differs_by_their_size(
    weighted: Callable[..., list[tuple[str, str, str, float]]],
    options: dict[str, str],
    differences: dict[str, float],
) -> None:
    found = {factor: by for factor, _, _, by in weighted(**options) if factor != "nice value"}
    assert found == pytest.approx(differences)


def test_memory_counts_if_nodes_have_it(tmp_path: Path) -> None:
    path = tmp_path / "memory.yml"
    text = SITE.replace("cpus: 2}", "cpus: 2, memory: 500}")
    path.write_text(
        text.replace("      Licenses", "      PriorityWeightTRES: Mem=400\n      Licenses")
    )
    plan = make_plan("site", scenario.load(path), CONTAINERS)
    (memory,) = (order for order in policy.orders(plan) if order.factor == "memory")
    assert [words[-1] for words in memory.options] == ["--mem=100", "--mem=50"]
    assert memory.difference == pytest.approx(10)


def test_sizes_are_compared_in_partitions_that_name_their_nodes(tmp_path: Path) -> None:
    path = tmp_path / "set.yml"
    lines = "      NodeSet: big Nodes=n1\n      PriorityWeightJobSize: 1600\n      Licenses"
    text = SITE.replace('{MaxTime: "1:00:00"}', '{MaxTime: "1:00:00", Nodes: big}')
    path.write_text(text.replace("      Licenses", lines))
    plan = make_plan("site", scenario.load(path), CONTAINERS)
    (cpus,) = (order for order in policy.orders(plan) if order.factor == "CPUs")
    assert {partition for partition, _ in cpus.columns} == {"long"}


def test_jobs_differ_in_age_as_long_as_it_takes_to_see_it(tmp_path: Path) -> None:
    def ages(weight: int) -> list[tuple[str, int]]:
        path = tmp_path / "age.yml"
        lines = f"      PriorityWeightAge: {weight}\n      PriorityMaxAge: 0-1\n      Licenses"
        path.write_text(SITE.replace("      Licenses", lines))
        plan = make_plan("site", scenario.load(path), CONTAINERS)
        return [(age.user, age.seconds) for age in policy.ages(plan)]

    assert ages(3600) == [("alice", 20)]
    assert ages(360000) == [("alice", 3)]
    assert ages(360) == []


@pytest.mark.parametrize(("sharing", "partition"), [("EXCLUSIVE", "main"), ("FORCE:4", "long")])
def test_jobs_of_different_ages_wait_only_where_one_job_can_fill_a_node(
    tmp_path: Path, sharing: str, partition: str
) -> None:
    path = tmp_path / "sharing.yml"
    lines = "      PriorityWeightAge: 3600\n      PriorityMaxAge: 0-1\n      Licenses"
    text = SITE.replace("MaxTime:", f"OverSubscribe: {sharing}, MaxTime:")
    path.write_text(text.replace("      Licenses", lines))
    plan = make_plan("site", scenario.load(path), CONTAINERS)
    assert [age.partition for age in policy.ages(plan)] == [partition]


def test_fair_share_is_compared_between_users_who_submit_alike(tmp_path: Path) -> None:
    def rivals(text: str, users: str) -> list[tuple[tuple[str, str], tuple[float, float]]]:
        path = tmp_path / "shares.yml"
        text = SITE.replace("      Licenses", f"{text}\n      Licenses")
        path.write_text(text.replace("groups:", f"{users}\ngroups:"))
        plan = make_plan("site", scenario.load(path), CONTAINERS)
        return [(pair.users, pair.shares) for pair in policy.rivals(plan)]

    weight = "      PriorityWeightFairshare: 1000"
    carol = "  carol: {uid: 2003, accounts: [chemistry], associations: {chemistry: {Fairshare: 4}}}"
    assert rivals(weight, carol) == [(("bob", "carol"), (1, 4))]
    assert rivals(weight, carol.replace("4}", "parent}")) == []
    assert rivals(weight, carol.replace("chemistry", "physics")) == [(("alice", "carol"), (1, 4))]
    assert rivals(weight, carol.replace("accounts", "admin: Operator, accounts")) == []
    assert rivals(weight, carol.replace("chemistry: {", "chemistry:main: {")) == []
    assert rivals(f"{weight}\n      PriorityFlags: NO_FAIR_TREE", carol) == []
    assert rivals(weight.replace("1000", "4"), carol) == []
