"""Values that some releases refuse: check reports a fatal finding for exactly these releases."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import releases
from harness.slurmconf import check

BASE = """\
ClusterName=c
SlurmctldHost=head
SlurmUser=slurm
NodeName=n[1-4] CPUs=2
PartitionName=p Nodes=ALL Default=YES
"""
ALL = frozenset(releases.KNOWN)


def since(first: str) -> frozenset[str]:
    """Return the releases from one on."""
    return frozenset(name for name in ALL if name >= first)


def refused_by(directory: Path, known_by: frozenset[str]) -> frozenset[str]:
    """Return the releases for which a directory has a fatal finding, among those given."""
    return frozenset(
        name
        for name in known_by
        if any(
            finding.severity == "fatal"
            for finding in check.check_path(directory, releases.get(name))
        )
    )


@pytest.mark.parametrize(
    ("text", "known", "refused"),
    [
        ("AuthType=munge", ALL, ALL - since("23.11")),
        ("AuthType=auth/munge,auth/jwt", ALL, ALL),
        ("CredType=auth/munge", ALL, ALL - since("23.11")),
        ("CredType=cred/slurm", ALL, ALL - since("23.11")),
        ("CredType=cred/munge\nCryptoType=crypto/openssl", ALL, frozenset()),
        ("CryptoType=crypto/openssl", ALL, ALL),
        ("CryptoType=crypto/munge", ALL, frozenset()),
        ("TLSType=none", since("24.05"), since("25.05")),
        ("TLSType=tls/none", since("24.05"), frozenset()),
        ("HashPlugin=none", since("24.05"), since("24.05")),
        ('HashPlugin=""', since("24.05"), frozenset()),
        ("JobSubmitPlugins=lua,none", ALL, ALL),
        ('JobSubmitPlugins=""', ALL, frozenset()),
        ('JobCompType=""', ALL, since("23.02")),
        ('PriorityType=""', ALL, ALL),
    ],
)
def test_plugin_names_are_read_as_each_release_reads_them(
    tmp_path: Path, text: str, known: frozenset[str], refused: frozenset[str]
) -> None:
    (tmp_path / "slurm.conf").write_text(f"{BASE}{text}\n")
    assert refused_by(tmp_path, known) == refused
