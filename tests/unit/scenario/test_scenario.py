from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from textwrap import dedent

import jsonschema
import pytest
from pydantic import TypeAdapter, ValidationError
from ruamel.yaml import YAML

from harness import releases, scenario
from harness.capabilities import Capabilities
from harness.errors import ScenarioError, UsageError
from harness.origins import Origin
from harness.plan import make_plan
from harness.shipped_files import TEMPLATES

SCENARIOS = sorted((Path(__file__).parents[3] / "scenarios").glob("*.yml"))


def problems(tmp_path: Path, text: str) -> list[str]:
    """Return the problems of a scenario, without the path before them."""
    path = tmp_path / "s.yml"
    path.write_text(dedent(text).lstrip())
    with pytest.raises(ScenarioError) as caught:
        scenario.load(path)
    assert caught.value.exit_code == 2
    return [str(problem).removeprefix(f"{path}:") for problem in caught.value.problems]


POWER_AND_BACKUP = (
    "clusters: {a: {controller: c, backup_controllers: [d], nodes: [{name: n, provision: power}]}}"
)
MANY = """clusters:
  one:
    hosts: sim
    nodes: [{name: "n[1-%d]"}]
    controller: ctl
"""
DYNAMIC = "clusters: {one: {controller: c, nodes: [{name: n, dynamic: true}]%s}}"


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_shipped_scenarios_are_valid(path: Path) -> None:
    scenario.load(path)


def test_every_problem_is_reported_at_once_with_its_place(tmp_path: Path) -> None:
    found = problems(
        tmp_path,
        """
        release: 22.06
        sites:
          a: {subnet: 10.0.0.0/16}
          b: {subnet: 10.0.1.0/24}
        clusters:
          x:
            site: a
            controller: ctl
            nodes:
              - name: n[1-3
                cpu: 3
          y:
            controller: ctl
            nodes: [{name: "n[2-3]", cpus: many}]
            nodes: []
            options: {Foo: [1, 2], Bar: {a: 1}}
        federations:
          f: {clusters: [x, z]}
        users:
          bob: {uid: 2000, accounts: [nope]}
        """,
    )
    assert found == [
        f'1:10: release: unknown release "22.06"; known: {", ".join(releases.KNOWN)}',
        "4:15: sites.b.subnet: 10.0.1.0/24 overlaps 10.0.0.0/16 of site a",
        '10:15: clusters.x.nodes.0.name: "n[1-3" is not a hostlist such as c[1-4] or c1,c2',
        '11:9: clusters.x.nodes.0.cpu: unknown key; did you mean "cpus"?',
        "13:5: clusters.y.site: is required because there are several sites: a, b",
        "13:17: clusters.y.controller: host ctl is already clusters.x.controller",
        "14:36: clusters.y.nodes.0.cpus: input should be a valid integer, unable to parse string"
        " as an integer"
        " (found: 'many')",
        "15:5: clusters.y.nodes: is defined twice",
        "16:33: clusters.y.options.Bar: the value of an option must be a string, a number, true, "
        "false, null or a list of these",
        "18:3: federations: a federation needs accounting: slurmdbd stores it",
        '18:21: federations.f.clusters.1: no cluster "z"; known: x, y',
        '20:31: users.bob.accounts.0: no account "nope"',
    ]


TOPOLOGY = (
    "clusters: {one: {controller: c, nodes: [{name: 'n[1-4]'}], release: '%s',"
    " topology: {t: %s}%s}}"
)
LEAVES = "{switches: {a: {nodes: 'n[1-2]'}, b: {nodes: 'n[3-4]'}, top: %s}}"


@pytest.mark.parametrize(
    ("described", "message"),
    [
        ("{}", "t: must have either switches, blocks or toruses"),
        (
            "{blocks: {a: 'n[1-4]'}, switches: {s: {nodes: 'n[1-4]'}}}",
            "must have either switches, blocks or toruses",
        ),
        (
            "{tree: {}}",
            "topology.t.tree: unknown key; known: switches, blocks, block_sizes, toruses",
        ),
        (
            "{blocks: {a: 'n[1-5]'}}",
            "t.blocks.a: no such node in cluster one: n5; its nodes are n[1-4]",
        ),
        ("{blocks: {a: 'n[1-3]'}}", "t: does not contain n4"),
        ("{blocks: {a: 'n[1-3]', b: 'n[3-4]'}}", "t.blocks.b: node n3 is in a already"),
        ("{blocks: {a: 'n[1-4],n1'}}", "t.blocks.a: node n1 is in a already"),
        (
            "{blocks: {a: 'n[1-4]'}, block_sizes: [2]}",
            "t.blocks.a: 4 nodes are more than a block of 2 has",
        ),
        (
            "{blocks: {a: 'n[1-4]'}, block_sizes: [4, 12]}",
            "t.block_sizes.1: 12 is not 4 times a power of two",
        ),
        ("{switches: {s: {nodes: 'n[1-4]'}}, block_sizes: [2]}", "t.block_sizes: requires blocks"),
        (LEAVES % "{}", "t.switches.top: must have either nodes or switches"),
        (
            LEAVES % "{switches: 'a,x'}",
            't.switches.top.switches: no switch "x"; known: a, b, top',
        ),
        (
            LEAVES % "{switches: 'a,b'}, more: {switches: b}",
            "t.switches.more.switches: switch b is below top already",
        ),
        (LEAVES % "{switches: 'a,b,top'}", "t.switches.top.switches: is a loop: top - top"),
        (
            "{toruses: {p: {dims: [2, 2, 2], nodes: 'n[1-4]', placements: [[1, 1, 1]]}}}",
            "4 nodes, but 2x2x2 is 8",
        ),
        (
            "{toruses: {p: {dims: [2, 2, 1], nodes: 'n[1-4]', placements: [[1, 1, 2]]}}}",
            "t.toruses.p.placements.0: 1x1x2 does not fit the torus, 2x2x1",
        ),
        (
            "{toruses: {p: {dims: [2, 2, 0], nodes: 'n[1-4]', placements: []}}}",
            "dims.2: input should be greater than",
        ),
    ],
)
def test_invalid_topology_is_refused_with_its_place(
    tmp_path: Path, described: str, message: str
) -> None:
    assert message in "\n".join(problems(tmp_path, TOPOLOGY % ("26.05", described, "")))


@pytest.mark.parametrize(
    ("release", "more", "message"),
    [
        (
            "22.05",
            "",
            "topology/block needs BlockSizes of topology.conf, which release 22.05 lacks;"
            " 24.05 has it",
        ),
        (
            "26.05",
            ", partitions: {p: {topology: x}}",
            'partitions.p.topology: no topology "x"; known: t',
        ),
        ("26.05", ", files: {topology.yaml: x}", "files.topology.yaml: is generated from topology"),
        (
            "26.05",
            ", nodes: [{name: 'n[1-4]', dynamic: true}]",
            "t: requires that slurm.conf names all nodes",
        ),
    ],
)
def test_what_a_cluster_lacks_for_its_topology_is_reported(
    tmp_path: Path, release: str, more: str, message: str
) -> None:
    text = (TOPOLOGY % (release, "{blocks: {a: 'n[1-4]'}}", more)).replace(
        "nodes: [{name: 'n[1-4]'}], ", "", "nodes:" in more
    )
    assert message in "\n".join(problems(tmp_path, text))


CLUSTER = "clusters: {one: {controller: ctl, nodes: [{name: 'c[1-2]'}]%s}}\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (CLUSTER % ", options: {A: 1}" + "colour: red", "2:1: colour: unknown key"),
        (CLUSTER % ", partitions: {p: {nodes: 'c[2-5]'}}", "no such node in cluster one: c[3-5]"),
        (
            CLUSTER % ", partitions: {p: {default: true}, q: {default: true}}",
            "p is the default already",
        ),
        (CLUSTER % ", nodes: 3", "is defined twice"),
        (CLUSTER % ", site: mars", 'no site "mars"'),
        (CLUSTER % ", release: '9.9'", 'unknown release "9.9"; known:'),
        (CLUSTER % ", release: 24.11", 'a release is a string: write "24.11", with the quotes'),
        (CLUSTER % ", options: {'A\\nB': 1}", "characters that are not allowed"),
        (CLUSTER % ', options: {A: "x\\ny"}', "the value of an option must be a single line"),
        (CLUSTER % "" + "users: {a: {uid: 2001}, b: {uid: 2001}}", "uid 2001 already belongs to a"),
        (
            CLUSTER % "" + "users: {slurm: {uid: 2001}}",
            "users.slurm: slurm is a system user of every host; choose",
        ),
        (CLUSTER % "" + "checks: {submit: [time=5]}", "checks.submit.0:"),
        (
            CLUSTER % "" + "users: {root: {uid: 0}}",
            "users.root.uid: input should be greater than or equal to 1000",
        ),
        (
            CLUSTER % "" + "accounting: {host: ctl, image: mine}",
            "host ctl is already accounting.host",
        ),
        (CLUSTER % "" + "accounting: {accounts: {a: {parent: b}}}", 'no account "b"'),
        (
            CLUSTER % "" + "accounting: {accounts: {a: {parent: b}, b: {parent: a}}}",
            "is its own ancestor",
        ),
        ("clusters: {one: {controller: c, nodes: []}}", "a cluster needs at least one node"),
        (
            "clusters: {one: {controller: c, nodes: [{name: 'n,n'}]}}",
            "node n is in this hostlist 2 times",
        ),
        (
            "clusters: {one: {controller: c, nodes: [{name: n}, {name: 'n'}]}}",
            "node n is already clusters.one.nodes.0",
        ),
        ("clusters: {One: {controller: c, nodes: [{name: n}]}}", "characters that are not allowed"),
        ("clusters: {one: {nodes: [{name: n}]}}", "1:12: clusters.one.controller: is required"),
        (DYNAMIC % ", release: '20.11'", "release 20.11 has no dynamic nodes; 22.05 has them"),
        (
            CLUSTER % ", release: '20.11', rest: {}",
            "release 20.11 neither checks the token of each request",
        ),
        (
            CLUSTER % ", release: '22.05'" + "auth: slurm\n",
            "auth: release 22.05 of one has no auth/slurm; 23.11, 24.05, 24.11,",
        ),
        (
            CLUSTER % ", release: '23.11', login: l" + "auth: slurm\n",
            "login: auth: slurm requires sackd, which is packaged from 24.11 on",
        ),
        (
            CLUSTER % ", defaults: false" + "auth: slurm\n",
            "defaults: auth: slurm requires the defaults, with AuthType",
        ),
        (CLUSTER % ", login: 'c[1-2]'", "node c1 is already clusters.one.login"),
        (
            CLUSTER % ", pam_slurm_adopt: true",
            "pam_slurm_adopt: requires login hosts, from which users log in to nodes",
        ),
        (
            CLUSTER % ", pam_slurm_adopt: true, login: l, hosts: h",
            "pam_slurm_adopt: looks for the jobs of one slurmd: nodes cannot share hosts",
        ),
        (
            CLUSTER % ", nss_slurm: true",
            "nss_slurm: the distribution's packages of Slurm lack it",
        ),
        (
            CLUSTER % ", image: own, nss_slurm: true, hosts: h",
            "nss_slurm: asks the steps of one slurmd: nodes cannot share hosts",
        ),
        (
            CLUSTER
            % ", image: own, nss_slurm: true, options: {launchparameters: [slurmstepd_memlock]}",
            "nss_slurm: requires LaunchParameters: enable_nss_slurm",
        ),
        (CLUSTER % ", login: ctl", "login: host ctl is already clusters.one.controller"),
        (CLUSTER % ", rest: {host: c1}", "node c1 is already clusters.one.rest.host"),
        (CLUSTER % ", defaults: false, rest: {}", "requires the defaults, with AuthAltTypes"),
        (CLUSTER % ", rest: {port: 80}", "greater than or equal to 1024"),
        (
            CLUSTER % ", release: '20.11', oci: {}",
            "oci: release 20.11 cannot run containers; 21.08 can",
        ),
        (
            CLUSTER % ", defaults: false, oci: {}",
            "oci: requires the defaults; without them, write oci.conf",
        ),
        (
            CLUSTER % ", oci: {}, files: {oci.conf: x}",
            "files.oci.conf: is generated from oci; remove it here",
        ),
        (
            CLUSTER % ", packages: [expect], image: mine",
            "packages: are for the harness's image; install them in your own image",
        ),
        (
            CLUSTER % ", packages: ['expect; reboot']",
            "packages.0: 'expect; reboot' has characters that are not allowed",
        ),
        (CLUSTER % "" + "shared_directories: [/etc]", "every host needs its own /etc"),
        (CLUSTER % "" + "shared_directories: [/run/x]", "every host needs its own /run/x"),
        (
            CLUSTER % "" + "shared_directories: [/home, /home]",
            "shared_directories: /home is listed twice",
        ),
        (
            CLUSTER % "" + "shared_directories: [/home/all]\ndisks: {c1: {/home: 10M}}",
            "disks.c1./home: hides the shared /home/all",
        ),
        (
            CLUSTER % "" + "users: {a: {uid: 2001, admin: Operator}}",
            "users.a.admin: needs accounts",
        ),
        (
            CLUSTER % ""
            + "accounting: {accounts: {x: {}, y: {}}}\n"
            + "users: {a: {uid: 2001, accounts: [x], associations: {y: {MaxJobs: 1}}}}",
            "users.a.associations.y: a has no account y",
        ),
        (
            CLUSTER % ""
            + "accounting: {accounts: {x: {}}}\n"
            + "users: {a: {uid: 2001, accounts: [x], coordinates: [xx]}}",
            'users.a.coordinates.0: no account "xx"; did you mean "x"?',
        ),
        (CLUSTER % ", accounts: {}", "clusters.one.accounts: needs accounting"),
        (
            CLUSTER % ", associations: {a: {}}" + "accounting: {}",
            'clusters.one.associations.a: no user "a"',
        ),
        (
            CLUSTER % ", accounts: {x: {parent: y}}" + "accounting: {accounts: {y: {}}}",
            'clusters.one.accounts.x.parent: no account "y"',
        ),
        (
            CLUSTER % ", accounts: {x: {}}"
            + "accounting: {accounts: {y: {}}}\nusers: {a: {uid: 2001, accounts: [y]}}",
            'users.a.accounts.0: no account "y"; known: x',
        ),
        (
            CLUSTER % ", accounts: {x: {}}, associations: {a: {accounts: [x], qos: [z]}}"
            + "accounting: {}\nusers: {a: {uid: 2001}}",
            'clusters.one.associations.a.qos.0: no QOS "z"',
        ),
        (
            CLUSTER % "" + "users: {a: {uid: 2001, admin: Boss}}",
            "users.a.admin: input should be 'Operator' or",
        ),
        (
            CLUSTER % "" + "accounting: {accounts: {a: {}}, slurm_user_accounts: [b]}",
            'no account "b"; known: a',
        ),
        (
            CLUSTER % ", kubernetes: true",
            "kubernetes: requires rest: its operator changes nodes through slurmrestd",
        ),
        (
            CLUSTER % ", kubernetes: true, rest: {}, defaults: false",
            "requires the defaults, with JobSubmitPlugins",
        ),
        (
            CLUSTER % ", kubernetes: true, rest: {}, release: '22.05'",
            "slurmrestd 22.05 does not report what jobs have; 24.05",
        ),
        (
            CLUSTER % ", kubernetes: true, rest: {}, files: {job_submit.lua: x}",
            "job_submit.lua: is generated for kub",
        ),
        (DYNAMIC % ", kubernetes: true, rest: {}", "requires static nodes that slurm.conf names"),
        *(
            (
                CLUSTER % f", kubernetes: true, rest: {{}}, options: {{{option}}}",
                f"options.{option.partition(':')[0]}: jobs would bypass the ledger of kubernetes",
            )
            for option in (
                "JobSubmitPlugins: require_timelimit",
                "GresTypes: gpu",
                "SelectType: select/linear",
                "MaxMemPerCPU: 100",
                "JobDefaults: DefCpuPerGPU=4",
                "AllowSpecResourcesUsage: true",
                "SelectTypeParameters: CR_Socket_Memory",
            )
        ),
        (
            CLUSTER.replace("'c[1-2]'", "c1, options: {State: UNKNOWN}")
            % ", kubernetes: true, rest: {}",
            "nodes.0.options.State: is set for kubernetes",
        ),
        (
            CLUSTER.replace("c[1-2]", "N_1") % ", kubernetes: true, rest: {}",
            "nodes: N_1 cannot be a node of Kubernetes",
        ),
        (CLUSTER.replace("c[1-2]", "kubernetes") % "", "node kubernetes: `harness render`"),
        (
            CLUSTER
            % (
                ", kubernetes: true, rest: {}, "
                "partitions: {p: {options: {OverSubscribe: EXCLUSIVE}}}"
            ),
            "partitions.p.options.OverSubscribe: jobs would bypass the ledger of kubernetes",
        ),
        (
            (MANY % 65538).replace("n[1-", "n[1-65536,65537-"),
            "4:12: clusters.one.nodes: 65538 nodes, but slurmctld 24.11 accepts at most 65537",
        ),
        (
            MANY % 12768,
            "3:12: clusters.one.hosts: too few for 12768 nodes; a host has ports for 12767",
        ),
        (DYNAMIC % ", hosts: h1", "nodes that share hosts are named in slurm.conf"),
        (
            DYNAMIC % ", partitions: {p: {nodes: n}}",
            "n is dynamic; only ALL or a NodeSet with a feature can include it",
        ),
        (DYNAMIC % ", defaults: false", "requires the defaults, with MaxNodeCount"),
        (CLUSTER % ", backup_controllers: [ctl]", "host ctl is already clusters.one.controller"),
        (
            POWER_AND_BACKUP,
            "cannot power nodes: a cluster whose nodes come and go has a single controller",
        ),
        (CLUSTER % "" + "accounting: {host: db, backup: ctl}", "host ctl is already"),
        (
            "sites: {a: {}, b: {}}\nmonitoring: {}\n" + CLUSTER % ", site: a",
            "monitoring.site: is required because there are several sites: a, b",
        ),
        (
            "sites: {a: {}, b: {dns_server: ctl}}\n" + CLUSTER % ", site: a",
            "sites.b.dns_server: ctl is in site a",
        ),
        (
            "sites: {a: {dns_server: x}, b: {dns_server: x}}\n" + CLUSTER % ", site: a",
            "sites.b.dns_server: x is in site a",
        ),
        (
            "sites: {a: {dns_server: e}}\n"
            + CLUSTER.replace("}]", "}, {name: e, provision: create}]") % "",
            "sites.a.dns_server: e is not always up",
        ),
        (CLUSTER % "" + "directory: {}", "directory: there are no users"),
        (
            CLUSTER % "" + "users: {alice: {uid: 2001}}\ndirectory: {}\nrelease: '26.05'",
            "directory: debian:forky, on which one has Slurm 26.05, has no sssd",
        ),
        (
            CLUSTER.replace("}]", "}, {name: e, provision: create}]") % ""
            + "users: {alice: {uid: 2001}}\ndirectory: {host: e}",
            "directory.host: e is not always up",
        ),
        (CLUSTER % "" + "disks: {mars: {/var/lib/mysql: 200M}}", 'disks.mars: no host "mars"'),
        (CLUSTER % "" + "disks: {ctl: {var: 200M}}", "characters that are not allowed"),
        ("clusters: {}", "clusters: dictionary should have at least 1 item"),
        ("clusters: [", "1:12: not YAML"),
        ("- a", "1:1: a scenario must be a mapping"),
        ("", "1:1: a scenario must be a mapping"),
    ],
)
def test_problem_is_found(tmp_path: Path, text: str, message: str) -> None:
    assert message in "\n".join(problems(tmp_path, text))


def test_setting_overrides_the_file_and_is_validated_like_it(tmp_path: Path) -> None:
    path = tmp_path / "s.yml"
    path.write_text(MANY % 12767)
    settings = [
        "clusters.one.nodes.0.name=n[1-2]",
        "clusters.one.options={MaxJobCount: 7}",
        "users={alice: {uid: 2001}}",
    ]
    read = scenario.load(path, settings=settings)
    assert read.clusters["one"].node_names() == ("n1", "n2")
    assert read.clusters["one"].options == {"MaxJobCount": 7}
    assert read.users["alice"].uid == 2001
    with pytest.raises(
        ScenarioError, match=r"4:20: clusters\.one\.nodes\.0\.name: \"n\[1-\" is not a hostlist"
    ):
        scenario.load(path, settings=["clusters.one.nodes.0.name='n[1-'"])


@pytest.mark.parametrize(
    "setting",
    ["clusters.one.nodes.1.cpus=2", "clusters.one.nodes.x=2", "users={", "users"],
)
def test_value_without_a_place_is_refused(tmp_path: Path, setting: str) -> None:
    path = tmp_path / "s.yml"
    path.write_text(MANY % 2)
    with pytest.raises(
        UsageError, match=f"--set {re.escape(setting)}: the scenario has no such key"
    ):
        scenario.load(path, settings=[setting])


def test_setting_adds_the_mappings_above_it(tmp_path: Path) -> None:
    path = tmp_path / "s.yml"
    path.write_text(MANY % 2)
    read = scenario.load(path, settings=["clusters.one.options.MinJobAge=20"])
    assert read.clusters["one"].options == {"MinJobAge": 20}
    with pytest.raises(
        ScenarioError, match=r'clusters\.one\.optoins: unknown key; did you mean "options"'
    ):
        scenario.load(path, settings=["clusters.one.optoins.MinJobAge=20"])


def test_node_in_two_clusters_is_found(tmp_path: Path) -> None:
    text = (
        "clusters:\n  a: {controller: x, nodes: [{name: 'n[1-2]'}]}\n"
        "  b: {controller: y, nodes: [{name: n2}]}\n"
    )
    assert problems(tmp_path, text) == [
        "3:37: clusters.b.nodes.0.name: node n2 is already clusters.a.nodes.0"
    ]


def test_cluster_in_two_federations_is_found(tmp_path: Path) -> None:
    text = (
        CLUSTER % "" + "accounting: {}\nfederations: {f: {clusters: [one]}, g: {clusters: [one]}}\n"
    )
    assert problems(tmp_path, text) == [
        "3:52: federations.g.clusters.0: cluster one is already in federation f"
    ]


def test_missing_file_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^cannot read .*none\.yml: No such file or directory\n"):
        scenario.load(tmp_path / "none.yml")


def test_controller_may_be_a_node_of_its_own_cluster(tmp_path: Path) -> None:
    path = tmp_path / "s.yml"
    path.write_text("clusters: {one: {controller: box, nodes: [{name: box}]}}")
    assert scenario.load(path).clusters["one"].node_names() == ("box",)


def test_chosen_release_reaches_every_cluster_and_slurmdbd_or_the_one_named() -> None:
    path = SCENARIOS[0].parent / "federation.yml"
    changed = scenario.load(path, ["26.05", "on-prem=24.11"])
    assert {name: changed.release_of(part) for name, part in changed.parts().items()} == {
        "on-prem": "24.11",
        "aws": "26.05",
        "slurmdbd": "26.05",
    }
    with pytest.raises(UsageError, match=r'unknown release "1\.0"'):
        scenario.load(path, ["1.0"])
    with pytest.raises(UsageError, match='no cluster "awz"; did you mean "aws"'):
        scenario.load(path, ["awz=24.11"])


def test_release_outside_slurmdbds_window_is_reported_with_the_rule(tmp_path: Path) -> None:
    found = problems(
        tmp_path,
        """
        release: "24.11"
        accounting: {}
        clusters:
          newer: {release: "26.05", controller: a, nodes: [{name: a1}]}
          older: {release: "22.05", controller: b, nodes: [{name: b1}]}
        """,
    )
    assert found == [
        "4:20: clusters.newer.release: 26.05, but slurmdbd is 24.11; "
        "rule: slurmdbd must be at least as new as every slurmctld it serves",
        "5:20: clusters.older.release: 22.05, but slurmdbd is 24.11; "
        "rule: slurmdbd 24.11 serves 23.02, 23.11, 24.05, 24.11, its own release and the 3"
        " before it",
    ]


def test_release_of_a_custom_image_is_the_images(tmp_path: Path) -> None:
    path = tmp_path / "s.yml"
    path.write_text("clusters: {one: {controller: box, image: mine, nodes: [{name: box}]}}")
    read = scenario.load(path, origin_of_image=lambda _: Origin("", "26.05", "26.05.1"))
    assert read.release_of(read.clusters["one"]) == "26.05"
    with pytest.raises(ScenarioError, match=r"image mine has Slurm 26\.05"):
        scenario.load(path, ["22.05"], lambda _: Origin("", "26.05", "26.05.1"))
    with pytest.raises(ScenarioError, match=r"it has Slurm 17\.02; known:"):
        scenario.load(path, origin_of_image=lambda _: Origin("", "17.02", "17.02.1"))


@pytest.mark.parametrize(
    "path", [*SCENARIOS, TEMPLATES / "scenario.yml"], ids=lambda path: path.stem
)
def test_schema_accepts_valid_scenarios(path: Path) -> None:
    jsonschema.validate(YAML(typ="safe", pure=True).load(path.read_text()), scenario.schema())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("clusters: {a: {controler: c, nodes: []}}", "'controler' was unexpected"),
        ("clusters: {a: {controller: c, nodes: [{name: n, cpu: 1}]}}", "'cpu' was unexpected"),
        ("{cluster: {}}", "'cluster' was unexpected"),
        ("clusters: {a: {controller: c, nodes: [{name: n, cpus: 0}]}}", "less than the minimum"),
        ('{release: "22.06", clusters: {a: {controller: c, nodes: [{name: n}]}}}', "is not one of"),
    ],
)
def test_schema_rejects_invalid_scenarios(text: str, message: str) -> None:
    validator = jsonschema.Draft202012Validator(scenario.schema())
    output = " ".join(
        error.message for error in validator.iter_errors(YAML(typ="safe", pure=True).load(text))
    )
    assert message in output


WITH_SCRIPT = """\
clusters:
  a:
    controller: a1
    nodes: [{{name: n1}}]
    scripts:
      {path}: {script}
"""


@pytest.mark.parametrize(
    ("path", "script", "message"),
    [
        ("/opt/x", "{file: x.files/gone}", "No such file"),
        ("/opt/x", "{file: gone}", "'gone' is not a plain path in a directory NAME.files next to"),
        ("/opt/x", "{file: x.files/link}", "outside of the scenario's directory"),
        ("/opt/x", "{file: x.files/bytes}", "can't decode byte"),
        ("/opt/x", "{file: x.files/../x.files/good}", "without . and .."),
        ("/opt/x", "{file: /etc/passwd}", "not a plain path"),
        ("/opt/x", "{file: run.json}", "not a plain path"),
        ("/opt/x", "{}", "needs either a file or a text"),
        ("/opt/x", "{file: x.files/good, text: a}", "needs either a file or a text"),
        ("/opt/x", "{text: 'a %secret:munge_key% b'}", "placeholder for a secret"),
        ("/etc/slurm/slurm.conf", "{text: a}", "has its own files there"),
        ("/opt/../etc/shadow", "{text: a}", "without . and .."),
        ("/x", "{text: a}", "not allowed here"),
    ],
)
def test_bad_script_is_refused(tmp_path: Path, path: str, script: str, message: str) -> None:
    secret = tmp_path.parent / "secret"
    secret.write_text("mine")
    files = tmp_path / "x.files"
    files.mkdir()
    (files / "good").write_text("#!/bin/sh\n")
    (files / "bytes").write_bytes(b"\xff")
    (files / "link").symlink_to(secret)
    found = problems(tmp_path, WITH_SCRIPT.format(path=path, script=script))
    assert message in "\n".join(found)


@pytest.mark.parametrize(
    ("path", "more", "message"),
    [
        ("/usr/lib/slurm/x.c", "", "must be below /etc, /opt, /srv or /usr, and end with .so"),
        ("/lib/x.so", "", "must be below /etc, /opt, /srv or /usr, and end with .so"),
        ("/opt/x.so", "    image: own\n", "install them in your own image"),
    ],
)
def test_bad_spank_plugin_is_refused(tmp_path: Path, path: str, more: str, message: str) -> None:
    text = WITH_SCRIPT.replace("scripts:", "spank_plugins:").format(path=path, script="{text: a}")
    assert message in "\n".join(problems(tmp_path, text + more))


def test_host_has_the_sources_of_its_clusters_spank_plugins(tmp_path: Path) -> None:
    (tmp_path / "x.files").mkdir()
    (tmp_path / "x.files/a.c").write_text("int a;\n")
    text = WITH_SCRIPT.replace("scripts:", "spank_plugins:")
    path = tmp_path / "x.yml"
    path.write_text(text.format(path="/opt/a.so", script="{file: x.files/a.c}"))
    plan = make_plan("x", scenario.load(path), Capabilities(cgroups=False, own_hardware=False))
    assert [host.spank_plugins for host in plan.hosts] == [(("/opt/a.so", "int a;\n"),)] * 2


WITH_USER_DATA = """\
clusters:
  a:
    controller: a1
    nodes:
      - {{name: "n[1-2]", provision: {provision}, user_data: {user_data}}}
"""


@pytest.mark.parametrize(
    ("user_data", "message"),
    [
        ("{text: 'packages: [gcc]'}", 'cloud-init ignores this text: it must begin with "#cloud-'),
        ("{text: '# cloud-config'}", 'cloud-init ignores this text: it must begin with "#cloud-'),
        ("{file: x.files/gone}", "No such file"),
        ("{}", "needs either a file or a text"),
        ("{text: '#!/bin/sh %secret:munge_key%'}", "placeholder for a secret"),
    ],
)
def test_bad_user_data_is_refused(tmp_path: Path, user_data: str, message: str) -> None:
    (found,) = problems(tmp_path, WITH_USER_DATA.format(provision="create", user_data=user_data))
    assert re.match(r"5:\d+: clusters\.a\.nodes\.0\.user_data", found)
    assert message in found


@pytest.mark.parametrize("provision", ["static", "manual", "remote", "power"])
def test_user_data_of_nodes_that_are_not_created_is_refused(tmp_path: Path, provision: str) -> None:
    text = WITH_USER_DATA.format(provision=provision, user_data="{text: '#!/bin/sh'}")
    (found,) = problems(tmp_path, text)
    assert "clusters.a.nodes.0.user_data: cloud-init initializes only nodes that" in found


@pytest.mark.parametrize(
    "text",
    [
        "#cloud-config\nusers: []\n",
        "#!/bin/sh\r\ntrue\r\n",
        "\n#Cloud-Config-Archive\n[]\n",
        "## template: jinja\n#cloud-config\n",
        'Content-Type: multipart/mixed; boundary="x"\n',
    ],
)
def test_created_hosts_have_the_user_data_of_their_nodes(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.files").mkdir()
    (tmp_path / "x.files/user-data").write_bytes(text.encode())
    path = tmp_path / "x.yml"
    user_data = "{file: x.files/user-data}"
    path.write_text(WITH_USER_DATA.format(provision="create", user_data=user_data))
    assert scenario.script_files(path) == ["x.files/user-data"]
    plan = make_plan("x", scenario.load(path), Capabilities(cgroups=False, own_hardware=False))
    assert {host.name: host.user_data for host in plan.hosts} == {"a1": "", "n1": text, "n2": text}


def test_script_at_the_path_of_another_file_is_refused(tmp_path: Path) -> None:
    text = WITH_SCRIPT.format(path="/etc/slurm/x", script="{text: a}") + "    files: {x: b}\n"
    assert problems(tmp_path, text) == [
        "6:21: clusters.a.scripts./etc/slurm/x: files already has x"
    ]


def test_script_of_a_file_has_its_text_with_line_ends(tmp_path: Path) -> None:
    (tmp_path / "x.files").mkdir()
    (tmp_path / "x.files/a").write_bytes(b"#!/bin/sh\r\n\033\n")
    path = tmp_path / "x.yml"
    path.write_text(WITH_SCRIPT.format(path="/opt/a", script="{file: x.files/a}"))
    assert scenario.load(path).clusters["a"].scripts["/opt/a"].text == "#!/bin/sh\r\n\033\n"


def test_no_script_replaces_a_rendered_file() -> None:
    """All paths of rendered files are refused, except files that a scenario may also name."""
    accepted = set()
    for golden in (Path(__file__).parents[2] / "golden").glob("*.txt"):
        paths = re.findall(r"(?m)^\S.*?:(/\S+)  0\d{3} ", golden.read_text())
        assert paths
        for path in paths:
            with suppress(ValidationError):
                accepted.add(TypeAdapter(scenario.ScriptPath).validate_python(path))
    assert accepted <= {
        *("/etc/slurm/cli_filter.lua", "/etc/slurm/job_submit.lua", "/etc/slurm/job-events")
    }
