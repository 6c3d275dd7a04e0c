"""The accounting tree is compared with the scenario: every difference is found in any notation."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from harness.cluster import association_comparison
from harness.scenario import Scenario

SCENARIO = Scenario.model_validate(
    {
        "clusters": {"c": {"controller": "ctl", "nodes": [{"name": "n1"}]}},
        "accounting": {
            "accounts": {
                "science": {"options": {"MaxJobs": 5}},
                "Physics": {
                    "parent": "science",
                    "options": {"Fairshare": 60, "GrpTRES": "cpu=6,mem=2G"},
                },
            },
            "qos": {
                "urgent": {"options": {"Priority": 1000, "MaxWall": "10", "MaxJobsPerUser": 2}}
            },
        },
        "users": {
            "alice": {"uid": 2001, "accounts": ["Physics", "science"], "qos": ["urgent"]},
            "guest": {"uid": 2002},
        },
    }
)
# As sacctmgr shows it: account, user, then columns.
SHOWN = {
    "root||": {"Share": "1", "QOS": "normal"},
    "root|root|": {"Share": "1"},
    "science||": {"Share": "1", "ParentName": "root", "MaxJobs": "5"},
    "physics||": {"Share": "60", "ParentName": "science", "GrpTRES": "cpu=6,mem=2048M"},
    "physics|alice|": {"Share": "1", "QOS": "normal,urgent"},
    "science|alice|": {"Share": "1", "QOS": "urgent,normal"},
}


def tree(shown: dict[str, dict[str, str]]) -> association_comparison.Table:
    names = association_comparison.columns(association_comparison.ASSOCIATION)
    text = "".join(
        f"{key}|{'|'.join(row.get(name, '') for name in names)}\n" for key, row in shown.items()
    )
    return association_comparison.parse(text, 3, names)


def test_tree_of_the_scenario_has_no_difference() -> None:
    assert (
        association_comparison.differences(
            association_comparison.associations(SCENARIO), tree(SHOWN), "association"
        )
        == []
    )


@pytest.mark.parametrize(
    ("key", "column", "text", "message"),
    [
        ("physics||", "Share", "1", "Share of association of account physics is 1, should be 60"),
        (
            "physics||",
            "ParentName",
            "root",
            "ParentName of association of account physics is root, should be science",
        ),
        (
            "physics||",
            "GrpTRES",
            "cpu=6",
            "GrpTRES of association of account physics is cpu=6, should be cpu=6,mem=2048",
        ),
        (
            "physics|alice|",
            "QOS",
            "normal",
            "QOS of association of user alice in account physics is normal",
        ),
        (
            "physics|alice|",
            "MaxJobs",
            "0",
            "MaxJobs of association of user alice in account physics is 0, should be unset",
        ),
        (
            "physics|alice|",
            "MaxWall",
            "1-00:00:00",
            "MaxWall of association of user alice in account physics is 86400",
        ),
    ],
)
def test_every_column_counts(key: str, column: str, text: str, message: str) -> None:
    shown = copy.deepcopy(SHOWN)
    shown[key][column] = text
    (found,) = association_comparison.differences(
        association_comparison.associations(SCENARIO), tree(shown), "association"
    )
    assert message in found


def test_missing_and_unexpected_associations_are_found() -> None:
    shown = {**SHOWN, "physics|bob|": {"Share": "1"}}
    del shown["science||"]
    assert association_comparison.differences(
        association_comparison.associations(SCENARIO), tree(shown), "association"
    ) == [
        "there is no association of account science",
        "the scenario has no association of user bob in account physics",
    ]


def test_unknown_option_does_not_restrict_the_columns_of_others() -> None:
    account = SCENARIO.accounting.accounts["science"].model_copy(
        update={"options": {"GrpCPUs": 3, "MaxJobs": 5}}
    )
    accounting = SCENARIO.accounting.model_copy(update={"accounts": {"science": account}})
    table = association_comparison.associations(
        SCENARIO.model_copy(update={"accounting": accounting, "users": {}})
    )
    assert table["science", "", ""] == {"MaxJobs": 5, "ParentName": "root"}


def test_option_that_appends_to_existing_values_is_not_compared() -> None:
    account = SCENARIO.accounting.accounts["science"].model_copy(
        update={"options": {"QOS": "+urgent"}}
    )
    accounting = SCENARIO.accounting.model_copy(update={"accounts": {"science": account}})
    table = association_comparison.associations(
        SCENARIO.model_copy(update={"accounting": accounting, "users": {}})
    )
    assert "QOS" not in table["science", "", ""]
    assert table["science", "", ""]["MaxJobs"] is None


def test_users_associations_have_their_options_and_accounts_their_coordinators() -> None:
    data = SCENARIO.model_dump()
    data["users"]["alice"] |= {
        "associations": {"science": {"MaxJobs": 3, "QOS": "urgent"}},
        "coordinates": ["Physics"],
    }
    scenario = Scenario.model_validate(data)
    rows = association_comparison.associations(scenario)
    assert (rows["science", "alice", ""]["MaxJobs"], rows["science", "alice", ""]["QOS"]) == (
        3,
        {"urgent"},
    )
    assert rows["physics", "alice", ""]["MaxJobs"] is None
    assert association_comparison.users(scenario)["alice",]["Coordinators"] == {"physics"}
    accounts = association_comparison.accounts(scenario)
    assert accounts["physics",] == {
        "Description": "physics",
        "Organization": "science",
        "Coordinators": {"alice"},
    }


def test_qos_has_its_options_and_the_defaults() -> None:
    row = association_comparison.qos(SCENARIO)["urgent",]
    assert (row["Priority"], row["MaxWall"], row["MaxJobsPU"], row["MaxSubmitPU"]) == (
        1000,
        600,
        2,
        None,
    )
    assert association_comparison.qos(SCENARIO)["normal",]["Priority"] == 0


@pytest.mark.parametrize(
    ("shown", "differences"),
    [
        ("matlab|flex\nansys|flex\nmatlab|flex|c\n", []),
        (
            "matlab|flex\nlie|flex\nlie|flex|c\n",
            [
                "there is no license ansys@flex",
                "there is no license matlab@flex of cluster c",
                "the scenario has no license lie@flex",
                "the scenario has no license lie@flex of cluster c",
            ],
        ),
    ],
)
def test_licenses_are_those_of_the_scenario(shown: str, differences: list[str]) -> None:
    data = SCENARIO.model_dump(exclude_unset=True)
    data["accounting"]["resources"] = {
        "matlab": {"server": "flex", "count": 20, "clusters": {"c": 50}},
        "ansys": {"server": "flex", "count": 5},
    }
    wanted = association_comparison.licenses(Scenario.model_validate(data))
    seen = association_comparison.parse_licenses(shown)
    assert association_comparison.differences(wanted, seen, "license") == differences


def test_users_without_an_account_are_unknown_and_others_have_no_rights() -> None:
    assert association_comparison.users(SCENARIO) == {
        ("root",): {"DefaultAccount": "root", "AdminLevel": "administrator", "Coordinators": set()},
        ("alice",): {"DefaultAccount": "physics", "AdminLevel": "none", "Coordinators": set()},
    }


def in_memory(**changes: Any) -> str:
    facts = {"shares": "60/0.59/101/0.00", "jobs": "5(0)", "account": "physics", "tres": ""}
    facts |= {"group": "cpu=6(1),mem=2048(0),node=N(1)", **changes}
    lines = [
        "Current Association Manager state",
        "UserName=alice(2001) DefAccount={account} DefWckey= AdminLevel=None",
        "UserName=root(0) DefAccount=root DefWckey= AdminLevel=Administrator",
        "UserName=carol(2003) DefAccount=(null) DefWckey= AdminLevel=None",  # on other clusters
        *(
            f"ClusterName=c Account={account} UserName={user} Partition= Priority=0 ID=1"
            f" SharesRaw/Norm/Level/Factor={shares} ParentAccount={parent} GrpJobs=N(0)"
            f" GrpSubmitJobs=N(0) GrpTRES={group}"
            f" GrpWall=N(0.35) MaxJobs={jobs} MaxSubmitJobs= MaxWallPJ="
            for account, user, shares, parent, jobs, group in (
                ("root", "", "1/0.00", "", "", "cpu=N(1)"),
                ("root", "root(0)", "1/0.00", "", "", "cpu=N(1)"),
                ("science", "", "1/0.00", "root(1)", "5(0)", "cpu=N(1)"),
                ("science", "alice(2001)", "1/0.00", "", "5(0)", "cpu=N(1)"),
                ("physics", "", "{shares}", "science(2)", "5(0)", "{group}"),
                ("physics", "alice(2001)", "1/0.5", "", "{jobs}", "cpu=N(1)"),
            )
        ),
        "QOS=normal(1) UsageRaw=0.0 GrpJobs=N(0) GrpSubmitJobs=N(0) MaxWallPJ= MaxTRESPJ={tres}"
        " PreemptMode=OFF Priority=0",
        "QOS=urgent(2) UsageRaw=0.0 GrpJobs=N(0) GrpSubmitJobs=N(0) MaxWallPJ=10 PreemptMode=OFF"
        " Priority=1000",
    ]
    return "\n".join(lines).format(**facts)


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, []),
        ({"shares": "1/0"}, ["Share of one of account physics is 1, should be 60"]),
        # A user has the limit of the account above that of its own account.
        ({"jobs": ""}, ["MaxJobs of one of user alice in account physics is unset, should be 5"]),
        ({"tres": "cpu=7,mem=3072"}, ["MaxTRES of one normal is cpu=7,mem=3072, should be unset"]),
        (
            {"group": "cpu=20(3),mem=N(0)"},
            ["GrpTRES of one of account physics is cpu=20, should be cpu=6,mem=2048"],
        ),
        ({"account": "science"}, ["DefaultAccount of one alice is science, should be physics"]),
    ],
)
def test_memory_of_slurmctld_is_compared_with_inherited_limits(
    changes: dict[str, str], found: list[str]
) -> None:
    tables = zip(
        association_comparison.in_memory(SCENARIO),
        association_comparison.parse_memory(in_memory(**changes)),
        strict=True,
    )
    assert [
        text
        for wanted, seen in tables
        for text in association_comparison.differences(wanted, seen, "one")
    ] == found


def test_cluster_with_accounts_of_its_own_is_compared_with_these() -> None:
    data = SCENARIO.model_dump(mode="json")
    own = {
        "accounts": {"optics": {"options": {"Fairshare": 7}}},
        "associations": {"guest": {"accounts": ["optics"]}},
    }
    data["clusters"]["d"] = {"controller": "ctl-d", "nodes": [{"name": "n2"}], **own}
    scenario = Scenario.model_validate(data)
    assert scenario.of_cluster("c") is scenario
    rows = association_comparison.associations(scenario.of_cluster("d"))
    assert {key for key in rows if key[0] != "root"} == {
        ("optics", "", ""),
        ("optics", "guest", ""),
    }
    assert rows["optics", "", ""]["Share"] == 7
    users = association_comparison.users(scenario.of_cluster("d"))
    assert {key[0]: row["DefaultAccount"] for key, row in users.items()} == {
        "root": "root",
        "guest": "optics",
    }
    assert {key[0] for key in association_comparison.accounts(scenario)} == {
        *("root", "science", "physics", "optics")
    }


def test_coordinators_of_an_account_are_those_of_the_accounts_below_it() -> None:
    scenario = Scenario.model_validate(
        {
            "clusters": {"c": {"controller": "ctl", "nodes": [{"name": "n1"}]}},
            "accounting": {
                "host": "ctl",
                "accounts": {
                    "physics": {},
                    "optics": {"parent": "physics"},
                    "lasers": {"parent": "optics"},
                    "art": {},
                },
            },
            "users": {"alice": {"uid": 2001, "accounts": ["art"], "coordinates": ["physics"]}},
        }
    )
    below = {"physics", "optics", "lasers"}
    assert association_comparison.users(scenario)["alice",]["Coordinators"] == below
    accounts = association_comparison.accounts(scenario)
    assert {name for (name,), row in accounts.items() if row["Coordinators"]} == below
