"""How daemons of releases that Debian does not package decided: see docs/releases.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import releases
from harness.slurmconf.check import check_path

BASE = "ClusterName=c\nSlurmctldHost=h\nNodeName=n[1-4]\nPartitionName=p Nodes=n1 Default=YES\n"
YAML = "- topology: t\n  block: {block_sizes: [1, 3], blocks: [{block: b, nodes: 'n[1-4]'}]}\n"


def severities(directory: Path, option: str) -> dict[str, str]:
    """Return the severity of what each release finds about an option."""
    return {
        name: finding.severity
        for name in releases.KNOWN
        for finding in check_path(directory, releases.get(name))
        if finding.option == option
    }


@pytest.mark.parametrize(
    ("text", "option", "expected"),
    [
        ("MaxNodeCount=2", "MaxNodeCount", {"22.05": "fatal", "23.11": "error", "24.11": "fatal"}),
        ("MaxNodeCount=0", "MaxNodeCount", {"23.02": "fatal", "24.05": "error"}),
        ("UrlParserType=url_parser/x", "UrlParserType", {"25.11": "error", "26.05": "warning"}),
        ("UrlParserType=url_parser/libhttp_parser", "UrlParserType", {"25.11": None}),
        ("ExtSensorsType=ext_sensors/rrd", "ExtSensorsType", {"23.02": "fatal", "23.11": "error"}),
    ],
)
def test_severity_depends_on_the_release(
    tmp_path: Path, text: str, option: str, expected: dict[str, str | None]
) -> None:
    (tmp_path / "slurm.conf").write_text(f"{BASE}{text}\n")
    found = severities(tmp_path, option)
    assert {name: found.get(name) for name in expected} == expected


def test_block_sizes_of_topology_yaml_are_validated_since_26_05_3(tmp_path: Path) -> None:
    (tmp_path / "slurm.conf").write_text(f"{BASE}TopologyPlugin=topology/block\n")
    (tmp_path / "topology.yaml").write_text(YAML)
    assert "25.11" not in severities(tmp_path, "block_sizes")
    assert severities(tmp_path, "block_sizes")["26.05"] == "fatal"
    older = check_path(tmp_path, releases.get("26.05.2"))
    assert "block_sizes" not in {finding.option for finding in older}
