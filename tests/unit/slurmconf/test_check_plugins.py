"""What `harness check` finds about plugins' options and the files that only plugins read."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import releases
from harness.slurmconf import check

BASE = """\
ClusterName=c
SlurmctldHost=head
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
NodeName=n[1-4] CPUs=2
PartitionName=p Nodes=ALL Default=YES
"""
HELPERS = "NodeFeaturesPlugins=node_features/helpers"
INFLUXDB = "AcctGatherProfileType=acct_gather_profile/influxdb"
CERTIFICATES = (
    "CertmgrType=certmgr/script\nCertmgrParameters=sign_csr_script=/opt/sign,"
    "generate_csr_script=/opt/csr,get_node_token_script=/opt/token"
)
BOTH_GRES = "GresTypes=gpu,mps\nNodeName=c1 CPUs=2 State=CLOUD Gres="


def fatal(directory: Path, release: str, files: dict[str, str]) -> str:
    """Return the fatal findings about files; slurm.conf has the base configuration, too."""
    for name, text in files.items():
        base = BASE if name == "slurm.conf" else ""
        (directory / name).write_text(f"{base}{text}\n")
    findings = check.check_path(directory, releases.get(release))
    return "\n".join(str(finding) for finding in findings if finding.severity == "fatal")


def assert_fatal(actual: str, expected: str) -> None:
    """Assert one fatal finding that contains a text, or none if it is ""."""
    assert (actual.count("fatal:") == 1 and expected in actual) if expected else not actual, actual


@pytest.mark.parametrize(
    ("release", "text", "expected"),
    [
        ("22.05", "PriorityMaxAge=35791393", ""),
        ("22.05", "PriorityMaxAge=35791394", "is too long a time"),
        ("22.05", "PriorityCalcPeriod=0:0:30", ""),
        ("22.05", "PriorityCalcPeriod=40000000", "is too long a time"),
        ("22.05", "PriorityDecayHalfLife=71582788:16", "0 requires PriorityUsageResetPeriod"),
        ("22.05", "PreemptExemptTime=99999999999", ""),
        ("22.05", "PreemptExemptTime=71582788:14", "is not a time"),
        ("24.11", "GresTypes=gpu,MPS", ""),
        ("24.11", "GresTypes=GPU,mps", "mps requires gpu"),
        ("24.11", "GresTypes=aXXXb,bXXXa", "bXXXa has the same plugin ID as aXXXb"),
        ("24.11", CERTIFICATES, ""),
        ("24.11", CERTIFICATES.replace("sign", "x"), "needs sign_csr_script="),
        ("24.11", CERTIFICATES.replace("token_", "x_"), "needs get_node_token_script="),
        ("25.05", CERTIFICATES, "needs get_node_cert_key_script="),
        ("24.11", f"{CERTIFICATES},certificate_renewal_period=-1", "is less than 0"),
        ("20.11", "BurstBufferType=datawarp,generic", ""),
        ("22.05", "BurstBufferType=datawarp,lua", "only one burst buffer plugin"),
        ("22.05", "NodeFeaturesPlugins=knl_generic\nResumeProgram=/r", "with ResumeProgram"),
        ("22.05", "NodeFeaturesPlugins=knl_generic", ""),
        ("22.05", "ExtSensorsType=ext_sensors/rrd", "needs ext_sensors.conf"),
        ("22.05", "SlurmctldPlugstack=nonstop", "needs nonstop.conf"),
        ("22.05", "PowerPlugin=power/nothing", "there is no plugin power/nothing"),
        ("23.11", "PowerPlugin=none", ""),
        ("24.11", 'JobCompType=jobcomp/filetxt\nJobCompLoc=""', "JobCompLoc: the value is empty"),
        ("26.05", "JobCompType=jobcomp/mysql\nJobCompPassScript=x/y", "not an absolute path"),
        ("26.05", "JobCompPassScript=x/y", ""),
        ("22.05", "AuthInfo=password", ""),
        ("24.11", "AuthInfo=password", "path of a munge socket"),
        ("24.11", 'AuthInfo=""', "path of a munge socket"),
        ("24.11", 'AuthType=""', ""),
        ("24.11", 'AuthType=auth/slurm\nCredType=cred/slurm\nAuthInfo=""', ""),
        ("24.11", "AuthInfo=cred_expire=60", ""),
        ("24.11", "SlurmctldParameters=rl_enable,rl_table_size=-1", "is less than 0"),
        ("25.05", "SlurmctldParameters=conmgr_quiesce_timeout=-1", "is more than"),
        ("26.05", "SlurmctldParameters=threadpool=odd", "is not enabled or disabled"),
        ("26.05", "SlurmctldParameters=threadpool=disabled,threadpool_preserve=2048", ""),
        ("26.05", "SlurmctldParameters=threadpool_preallocate=2049", "is more than 2048"),
    ],
)
def test_options(tmp_path: Path, release: str, text: str, expected: str) -> None:
    assert_fatal(fatal(tmp_path, release, {"slurm.conf": text}), expected)


@pytest.mark.parametrize(
    ("release", "text", "expected"),
    [
        (
            "24.11",
            "Feature=a,b Helper=/x\nNodeName=n1 Feature=a Helper=/y",
            "a is already in line 1",
        ),
        ("24.11", "Feature=a,b Helper=/x\nNodeName=n1 Feature=c Helper=/y", ""),
        ("22.05", "Feature=a,b Helper=/x", '"a,b" is not the name of a feature'),
        ("24.11", "Feature=9a", '"9a" is not the name of a feature'),
        ("22.05", "Feature=a\nFeature=a", "a is already in line 1"),
        ("22.05", "BootTime=5", "there is none"),
        ("24.11", "BootTime=5", ""),
        ("24.11", "NodeName=n1 Helper=/x", "needs a Feature"),
        ("22.05", "Feature=a\nAllowUserBoot=@", ""),
        ("24.11", "Feature=a\nAllowUserBoot=root,@", '"@" is not the name of a user'),
    ],
)
def test_helpers_conf(tmp_path: Path, release: str, text: str, expected: str) -> None:
    assert_fatal(fatal(tmp_path, release, {"slurm.conf": HELPERS, "helpers.conf": text}), expected)


@pytest.mark.parametrize(
    ("plugin", "text", "expected"),
    [
        ("energy/ipmi", "EnergyIPMIFrequency=2147483647", ""),
        ("energy/ipmi", "EnergyIPMIFrequency=2147483648", "must be a positive integer"),
        ("energy/xcc", "EnergyIPMIFrequency=0x0", "must be a positive integer"),
        ("energy/xcc", "EnergyIPMIPowerSensors=Node=1", "requires energy/ipmi"),
        ("energy/xcc", "EnergyIPMIUsername=u", ""),
        ("profile/influxdb", "ProfileInfluxDBFlags=odd", '"odd" is unknown'),
        ("profile/influxdb", "ProfileInfluxDBExtraTags=user", "grouped_fields"),
    ],
)
def test_acct_gather_conf(tmp_path: Path, plugin: str, text: str, expected: str) -> None:
    kind = plugin.partition("/")[0].capitalize()
    if "influxdb" in plugin:
        text += "\nProfileInfluxDBHost=h\nProfileInfluxDBDatabase=d"
    files = {"slurm.conf": f"AcctGather{kind}Type=acct_gather_{plugin}", "acct_gather.conf": text}
    assert_fatal(fatal(tmp_path, "26.05", files), expected)


@pytest.mark.parametrize(
    ("release", "text", "expected"),
    [
        ("24.11", "AllowMCDRAM=Cache,odd\nDefaultMCDRAM=flat,memory\nSystemType=dell", ""),
        ("24.11", "AllowMCDRAM=odd", '"odd" must be at least one of cache, hybrid, flat'),
        ("24.11", "DefaultNUMA=a2a,quad", '"a2a,quad" must be one of a2a, snc2'),
        ("24.11", "SystemType=odd", "must be Intel or Dell"),
        ("24.11", "AllowUserBoot=@", '"@" is not the name of a user'),
        ("22.05", "AllowUserBoot=@\nNodeRebootWeight=5", ""),
        ("24.11", "NodeRebootWeight=5", "NodeRebootWeight"),
    ],
)
def test_knl_generic_conf(tmp_path: Path, release: str, text: str, expected: str) -> None:
    files = {"slurm.conf": "NodeFeaturesPlugins=knl_generic", "knl_generic.conf": text}
    assert_fatal(fatal(tmp_path, release, files), expected)


@pytest.mark.parametrize(
    ("release", "text", "expected"),
    [
        ("24.11", "RunTimeRun=r\nRunTimeKill=k\nRunTimeDelete=d", ""),
        ("22.05", "RunTimeRun=r\nRunTimeKill=k\nRunTimeDelete=d", "without RunTimeQuery"),
        ("24.11", "RunTimeRun=r", "no container without RunTimeDelete, RunTimeKill"),
        ("24.11", "RunTimeRun=r\nRunTimeStart=s", "together with RunTimeCreate"),
        ("24.11", "", "without RunTimeCreate, RunTimeStart, RunTimeDelete"),
        ("20.11", "", "is not read before 21.08"),
        ("24.11", "IgnoreFileConfigJson=yes\nCreateEnvFile=No", ""),
        ("24.11", "IgnoreFileConfigJson=yes\nCreateEnvFile=on", '"on" must be null'),
        ("24.11", "IgnoreFileConfigJson=yes\nDebugFlags=odd", '"odd" is unknown'),
    ],
)
def test_oci_conf(tmp_path: Path, release: str, text: str, expected: str) -> None:
    (tmp_path / "slurm.conf").write_text(BASE)
    (tmp_path / "oci.conf").write_text(f"{text}\n")
    findings = map(str, check.check_path(tmp_path, releases.get(release)))
    found = [line for line in findings if "oci.conf" in line]
    assert (len(found) == 1 and expected in found[0]) if expected else not found, found


@pytest.mark.parametrize(
    "name", ["helpers.conf", "burst_buffer.conf", "topology.conf", "knl_generic.conf"]
)
def test_files_that_no_plugin_reads_are_not_checked(tmp_path: Path, name: str) -> None:
    assert fatal(tmp_path, "24.11", {"slurm.conf": "", name: "NoSuch=1"}) == ""


@pytest.mark.parametrize(
    ("release", "text", "expected"),
    [
        ("24.11", 'ArchiveDir=""', "the value is empty"),
        ("24.11", "PurgeJobAfter=4294967294", "is not an age"),
        ("24.11", "DebugLevelSyslog=4294967294", "is not a debug level"),
        ("24.11", "DebugLevel=9x", ""),
        ("20.11", "SlurmUser=slurm\nDbdPort=10", "only root may listen below 1024"),
        ("20.11", "SlurmUser=slurm\nDbdPort=10M", ""),
        ("26.05", "StoragePassScript=x/y", '"x/y" is not an absolute path'),
        ("26.05", "StoragePassScript=/x/y", ""),
        ("24.11", 'AuthType=""', ""),
        ("22.05", "AuthInfo=x", ""),
        ("24.11", "AuthInfo=x", "munge socket"),
        ("24.11", 'AuthInfo=""', "munge socket"),
        ("20.11", "AuthAltTypes=auth/jwt\nAuthAltParameters=jwks=/k", "needs a jwt_key"),
        ("22.05", "AuthAltTypes=auth/jwt\nAuthAltParameters=jwks=/k", ""),
    ],
)
def test_slurmdbd_conf(tmp_path: Path, release: str, text: str, expected: str) -> None:
    text = f"DbdHost=db\nStorageType=accounting_storage/mysql\n{text}"
    assert_fatal(fatal(tmp_path, release, {"slurmdbd.conf": text}), expected)


@pytest.mark.parametrize(
    ("release", "gres", "text", "expected"),
    [
        ("24.11", "gpu:2", "Name=gpu File=/dev/a\nName=gpu Count=1", "have File while others"),
        ("24.11", "gpu:2", "Name=gpu Type=a\nName=gpu File=/dev/a", "have File while others"),
        ("24.11", "gpu:2", "Name=gpu Type=a Count=1\nName=gpu Count=1", "have Type while others"),
        ("24.11", "gpu:2", "Name=gpu Count=1\nName=gpu Count=1", "already described"),
        ("24.11", "gpu:2", "Name=gpu File=/dev/a\nName=gpu File=/dev/a", "/dev/a is already"),
        ("24.11", "gpu:2", "Name=gpu File=/dev/a\nNodeName=n9 Name=gpu Count=1", ""),
        ("24.11", "gpu:a:1,gpu:1", "", "some gpu have a type"),
        ("24.11", "gpu:1", "Name=gpu File=/dev/a Flags=no_gpu_env,amd_gpu_env", "excludes"),
        ("20.11", "gpu:1", "Name=gpu File=/dev/a Flags=no_gpu_env,amd_gpu_env", ""),
        ("24.11", "gpu:2", "Name=gpu File=/dev/a\nName=gpu File=/dev/b Flags=amd_gpu_env", "diff"),
        ("24.11", "gpu:2", "Name=gpu File=/dev/a Flags=amd_gpu_env\nName=gpu File=/dev/b", ""),
        ("24.11", "gpu:2", "Name=gpu File=/dev/a\nName=gpu File=/dev/b Flags=CountOnly", "diff"),
        ("26.05", "gpu:2", "Name=gpu File=/dev/a\nName=gpu File=/dev/b Flags=CountOnly", ""),
        ("22.05", "gpu:1", "AutoDetect=nvml", "cannot be used on a cloud node"),
        ("24.11", "gpu:1", "AutoDetect=nvml", ""),
        ("22.05", "gpu:1", "AutoDetect=off", ""),
        ("24.11", "gpu:1", "Name=gpu Count=-5", ""),
        ("24.11", "gpu:1", "Name=gpu Count=-1", "is not a count"),
        ("24.11", "gpu:1,mps:100", "", "mps requires a gpu that has File"),
        ("24.11", "gpu:1,mps:100", "Name=gpu File=/dev/a", ""),
        ("24.11", "gpu:1,mps:9", "Name=gpu File=/dev/a\nName=mps File=/dev/a Count=5", "without"),
        ("24.11", "gpu:1,mps:a:1,mps:b:1", "Name=gpu File=/dev/a", "more than one type"),
    ],
)
def test_gres_of_cloud_nodes(
    tmp_path: Path, release: str, gres: str, text: str, expected: str
) -> None:
    files = {"slurm.conf": f"{BOTH_GRES}{gres}", "gres.conf": text}
    assert_fatal(fatal(tmp_path, release, files), expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("r0i0s0 Nodes=n1 Switches=r0i0s1-4\nSwitchName=r0i0s1 Switches=r0i0s0-4", ""),
        ("s0 Nodes=n1 Switches=s0-4", "is not a place such as r0i1s2"),
        ("r1024i0s0 Nodes=n1 Switches=r1024i0s0-4", "is not a place"),
        ("r0i0s0 Nodes=n1 Switches=r0i0s0", "has no speed"),
        ("r0i0s0 Nodes=n1 Switches=r0i0s0-0", "the speed of r0i0s0 is 0"),
        ("r0i0s0 Nodes=n1 Switches=r0i0s5-4", "there is no switch r0i0s5"),
        ("r0i0s0 Nodes=n1", "has no link"),
        ("r0i0s0 Nodes=n[1-2] Switches=r0i0s0-4", 'there is no node "n[1-2]"'),
        ("r0i0s0 Nodes=x1 Switches=r0i0s0-4", 'there is no node "x1"'),
        (
            "r0i0s0 Nodes=n1 Switches=r0i0s0-4\nSwitchName=r0i0s1 Nodes=n2 Switches=r0i0s1-4",
            "no link leads to r0i0s1",
        ),
    ],
)
def test_hypercube(tmp_path: Path, text: str, expected: str) -> None:
    files = {
        "slurm.conf": "TopologyPlugin=topology/hypercube",
        "topology.conf": f"SwitchName={text}",
    }
    assert_fatal(fatal(tmp_path, "22.05", files), expected)


SQUARE = "name: a, dims: {x: 2, y: 2, z: 1}"
WHOLE = f"{SQUARE}, nodes: 'n[1-4]'"
HALF = "dims: {x: 2, y: 1, z: 1}"
RING = "ring: {rings: [{ring: r, nodes: 'n[1-4]'}]}"
TORUS = f"torus3d: {{toruses: [{{{SQUARE}, regions: [{{{HALF}, nodes: 'n[1-2]'}}]}}]}}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tree: {switches: [{nodes: n1}]}", "has no name"),
        ("ring: {rings: []}", "No rings configured"),
        ("ring: {rings: [{ring: a, nodes: n1}, {ring: a, nodes: n2}]}", "already defined"),
        ("ring: {rings: [{ring: a, nodes: 'x[1-17]'}]}", ""),
        ("torus3d: {toruses: []}", "No torus3d configured"),
        (f"torus3d: {{toruses: [{{{WHOLE}}}]}}", ""),
        (f"torus3d: {{toruses: [{{{WHOLE}, placements: [{{{HALF}}}]}}]}}", ""),
        ("torus3d: {toruses: [{name: a, dims: {x: 2}, nodes: n1}]}", "none of them can be 0"),
        (f"torus3d: {{toruses: [{{{SQUARE}, nodes: n1}}]}}", "has 1 nodes, but its dims make 4"),
        (
            f"torus3d: {{toruses: [{{name: a, {HALF}, nodes: 'n[1-2]'}},"
            f" {{name: b, {HALF}, nodes: 'n[2-3]'}}]}}",
            "torus b shares n2 with a",
        ),
        (
            f"torus3d: {{toruses: [{{{SQUARE},"
            f" regions: [{{anchor: {{x: 1}}, {HALF}, nodes: n}}]}}]}}",
            "a region exceeds its torus",
        ),
        (
            f"torus3d: {{toruses: [{{{WHOLE}, placements: [{{dims: {{x: 3, y: 1, z: 1}}}}]}}]}}",
            "a placement exceeds its torus",
        ),
        (
            f"torus3d: {{toruses: [{{{SQUARE}, regions: [{{{HALF}, nodes: 'n[1-2]'}},"
            f" {{anchor: {{y: 1}}, {HALF}, nodes: 'n[3-4]'}}]}}]}}",
            "",
        ),
        (
            f"torus3d: {{toruses: [{{{SQUARE}, regions: [{{{HALF}, nodes: 'n[1-2]'}},"
            f" {{{HALF}, nodes: 'n[3-4]'}}]}}]}}",
            "regions of torus a overlap",
        ),
    ],
)
def test_topology_yaml(tmp_path: Path, text: str, expected: str) -> None:
    yaml = f"- topology: t\n  cluster_default: true\n  {text}"
    assert_fatal(fatal(tmp_path, "26.05", {"slurm.conf": "", "topology.yaml": yaml}), expected)


@pytest.mark.parametrize(
    ("unit", "expected"),
    [
        ("leaf", ""),
        ("top:new", ""),
        ("new", "there is no switch new"),
        ("leaf:new", "leaf has nodes"),
        ("top", "top is not a leaf switch"),
    ],
)
def test_switches_that_nodes_name_exist(tmp_path: Path, unit: str, expected: str) -> None:
    files = {
        "slurm.conf": f"TopologyPlugin=topology/tree\nNodeName=m1 Topology=default:{unit}",
        "topology.conf": "SwitchName=leaf Nodes=n[1-4]\nSwitchName=top Switches=leaf",
    }
    assert_fatal(fatal(tmp_path, "26.05", files), expected)


@pytest.mark.parametrize(
    ("topology", "text", "expected"),
    [
        (RING, "m1 Topology=t:r:4", ""),
        (RING, "m1 Topology=t:s:0", ""),
        (RING, "m1 Topology=t:s:1", "there is no ring s"),
        (RING, "m1 Topology=t:r:0x10", '"r:0x10" is not RING:POSITION'),
        (RING, "m1 Topology=t:r", '"r" is not RING:POSITION'),
        (RING, "m[1-12] Topology=t:r:0", ""),
        (RING, "m[1-13] Topology=t:r:0", "ring r already has 16 nodes"),
        (TORUS, "m1 Topology=t:a:1:1:0", ""),
        (TORUS, "m1 Topology=t:a:0:0:0", "0:0:0 of torus a is the place of n1"),
        (TORUS, "m[1-2] Topology=t:a:1:1:0", "1:1:0 of torus a is the place of m1"),
        (TORUS, "m1 Topology=t:a:0:2:0", "0:2:0 is outside of torus a"),
        (TORUS, "m1 Topology=t:a:0:0", '"a:0:0" is not TORUS:X:Y:Z'),
        (TORUS, "m1 Topology=t:b:0:0:0", "there is no torus b"),
    ],
)
def test_rings_and_toruses_have_room_for_nodes_that_name_a_position(
    tmp_path: Path, topology: str, text: str, expected: str
) -> None:
    files = {
        "slurm.conf": f"NodeName={text}",
        "topology.yaml": f"- topology: t\n  cluster_default: true\n  {topology}",
    }
    assert_fatal(fatal(tmp_path, "26.05", files), expected)


def test_a_tree_has_at_most_21_levels_if_the_highest_switch_is_first(tmp_path: Path) -> None:
    chain = [f"SwitchName=s{level} Switches=s{level + 1}" for level in range(22)]
    chain.append("SwitchName=s22 Nodes=n[1-4]")
    tree = "TopologyPlugin=topology/tree"
    files = {"slurm.conf": tree, "topology.conf": "\n".join(chain)}
    assert_fatal(fatal(tmp_path, "24.11", files), "more than 21 levels in this order")
    files["topology.conf"] = "\n".join(chain[::-1])
    assert fatal(tmp_path, "24.11", files) == ""


@pytest.mark.parametrize(
    ("release", "text", "daemons"),
    [
        ("24.11", "AccountingStorageType=accounting_storage/odd", {"slurmctld"}),
        ("25.05", "AccountingStorageType=accounting_storage/odd", {"slurmctld", "slurmd"}),
        ("22.05", "AcctGatherProfileType=acct_gather_profile/odd", {"slurmctld", "slurmd"}),
        ("22.05", "TaskPlugin=task/odd", {"slurmd"}),
    ],
)
def test_plugins_are_missing_in_the_daemons_that_load_them(
    tmp_path: Path, release: str, text: str, daemons: set[str]
) -> None:
    (tmp_path / "slurm.conf").write_text(f"{BASE}{text}\n")
    findings = check.check_path(tmp_path, releases.get(release))
    refusing = {
        name for finding in findings if finding.severity == "fatal" for name in finding.daemons
    }
    assert refusing == daemons
