"""Where Slurm comes from: what is found out about it without unpacking or installing it."""

from __future__ import annotations

from pathlib import Path

import pytest
from package_samples import META, deb, rpm, tarball

from harness import origins, releases, scenario
from harness.errors import ScenarioError, UsageError
from harness.origins import NotAnOrigin, Wanted
from harness.parsing import package_files

ONE_HOST = "controller: box, nodes: [{name: box}]"


def test_source_says_its_release_and_patch_level(tmp_path: Path) -> None:
    path = tarball(tmp_path / "any.tar.bz2", "25.11.2")
    found = origins.resolve(Wanted(source=str(path)))
    assert (found.release, found.version, found.base) == ("25.11", "25.11.2", "debian:trixie")
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "META").write_text(META.format("23.02.7"))
    found = origins.resolve(Wanted(source=str(tree), base="ubuntu:22.04"))
    assert (found.release, found.version, found.base) == ("23.02", "23.02.7", "ubuntu:22.04")
    before = found.digest
    (tree / "patch.c").write_text("")
    assert origins.resolve(Wanted(source=str(tree))).digest != before


def test_source_that_is_downloaded_later_has_the_release_in_its_name() -> None:
    url = "https://download.schedmd.com/slurm/slurm-25.11.2.tar.bz2"
    assert origins.resolve(Wanted(source=url)).version == "25.11.2"
    with pytest.raises(NotAnOrigin, match="cannot find out the release"):
        origins.resolve(Wanted(source="https://example.com/latest.tar.bz2"))
    assert (
        origins.resolve(Wanted(source="https://example.com/latest.tar"), "25.05").release == "25.05"
    )


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"no tarball", "is not a tar archive, or damaged"),
        (b"", "is not a tar archive, or damaged"),
        (None, "No such file or directory"),
    ],
)
def test_file_that_is_no_tarball_is_refused(
    content: bytes | None, why: str, tmp_path: Path
) -> None:
    path = tmp_path / "slurm.tar.bz2"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(NotAnOrigin, match=why):
        origins.resolve(Wanted(source=str(path)))


def test_tarball_of_another_program_is_refused(tmp_path: Path) -> None:
    path = tarball(tmp_path / "a.tar.bz2", "24.11.5", name="munge/README")
    with pytest.raises(NotAnOrigin, match="is not Slurm's source"):
        origins.resolve(Wanted(source=str(path)))


def test_release_that_is_not_known_or_differs_from_the_named_one_is_refused(tmp_path: Path) -> None:
    old = tarball(tmp_path / "a.tar.bz2", "19.05.8")
    with pytest.raises(NotAnOrigin, match=r"has Slurm 19\.05\.8; known releases: 20\.11"):
        origins.resolve(Wanted(source=str(old)))
    new = tarball(tmp_path / "b.tar.bz2", "24.11.5")
    with pytest.raises(NotAnOrigin, match=r"22\.05, but source .* has Slurm 24\.11\.5"):
        origins.resolve(Wanted(source=str(new)), "22.05")


def test_packages_say_their_version_whatever_they_are_called(tmp_path: Path) -> None:
    deb(tmp_path, "slurm-smd", "25.11.2-1")
    deb(tmp_path, "acme-slurmctld", "1:25.11.2-7~acme")
    deb(tmp_path, "libacme", "3.1-1")
    found = origins.resolve(Wanted(packages=str(tmp_path)))
    assert (found.release, found.version, found.family) == ("25.11", "25.11.2", "debian")


def test_rpm_files_are_read_without_rpm(tmp_path: Path) -> None:
    path = rpm(tmp_path, "slurm-slurmctld", "25.11.2")
    read = package_files.read(path)
    assert (read.name, read.version) == ("slurm-slurmctld", "25.11.2-1.el9")
    found = origins.resolve(Wanted(packages=str(tmp_path), base="rockylinux:9"))
    assert (found.version, found.family) == ("25.11.2", "el")


def test_packages_that_cannot_be_installed_are_refused(tmp_path: Path) -> None:
    def why(**wanted: str) -> str:
        with pytest.raises(NotAnOrigin) as caught:
            origins.resolve(Wanted(packages=str(tmp_path), **wanted))
        return str(caught.value)

    assert "has no packages" in why()
    rpm(tmp_path, "slurm", "25.11.2")
    assert "slurm-25.11.2-1.el9.x86_64.rpm cannot be installed on debian:trixie" in why()
    deb(tmp_path, "slurm-smd", "25.11.2-1")
    assert "has both .deb and .rpm files" in why()
    next(tmp_path.glob("*.rpm")).unlink()
    assert "cannot be installed on rockylinux:9, which has .rpm packages" in why(
        base="rockylinux:9"
    )
    deb(tmp_path, "slurm-smd-slurmd", "24.11.5-1")
    assert "packages of several versions of Slurm: slurm-smd-slurmd_24.11.5-1_amd64.deb" in why()
    (tmp_path / "slurm-broken_1_all.deb").write_bytes(b"!<arch>\nbroken")
    assert "is not a package, or damaged" in why()


def test_packages_for_another_architecture_are_named(tmp_path: Path) -> None:
    paths = [
        deb(tmp_path, "slurm-smd", "25.11.2-1", architecture)
        for architecture in ("amd64", "arm64", "all")
    ]
    assert origins.foreign(paths, "x86_64") == ["slurm-smd_25.11.2-1_arm64.deb (arm64)"]
    assert origins.foreign(paths, "aarch64") == ["slurm-smd_25.11.2-1_amd64.deb (amd64)"]


def test_packages_that_no_host_needs_are_left_out(tmp_path: Path) -> None:
    names = ("slurm-smd", "slurm-smd-slurmd", "slurm-smd-slurmd-dbgsym", "slurm-smd-doc")
    for name in names:
        deb(tmp_path, name, "25.11.2-1")
    taken = {path.name.split("_")[0] for path in origins.package_paths(tmp_path)}
    assert taken == {"slurm-smd", "slurm-smd-slurmd"}


@pytest.mark.parametrize("release", releases.packaged())
def test_debian_has_its_own_slurm_by_name_and_by_number(release: str) -> None:
    suite = releases.get(release).suite
    assert origins.resolve(Wanted(base=f"debian:{suite}")).release == release


def test_unknown_base_and_a_base_without_slurm_are_refused() -> None:
    with pytest.raises(NotAnOrigin, match='unknown base "gentoo:1"'):
        origins.base("gentoo:1")
    with pytest.raises(NotAnOrigin, match="rockylinux:9 has no packages of Slurm"):
        origins.resolve(Wanted(base="rockylinux:9"))


def load(directory: Path, text: str, *choices: str) -> scenario.Scenario:
    path = directory / "s.yml"
    path.write_text(text)
    return scenario.load(path, choices)


def test_parts_take_their_slurm_from_the_scenario_unless_they_name_their_own(
    tmp_path: Path,
) -> None:
    tarball(tmp_path / "new.tar.bz2", "25.11.2")
    debs = tmp_path / "debs"
    debs.mkdir()
    deb(debs, "slurm-smd", "25.05.1-1")
    read = load(
        tmp_path,
        f"""
        source: new.tar.bz2
        clusters:
          one: {{{ONE_HOST}}}
          two: {{packages: [expect, ./debs], {ONE_HOST.replace("box", "two")}}}
          three: {{release: "24.11", {ONE_HOST.replace("box", "three")}}}
          four: {{base: "debian:bookworm", {ONE_HOST.replace("box", "four")}}}
        """,
    )
    versions = {
        name: (part.origin and (part.origin.version, part.origin.base))
        for name, part in read.clusters.items()
    }
    assert versions == {
        "one": ("25.11.2", "debian:trixie"),
        "two": ("25.05.1", "debian:trixie"),
        "three": None,
        "four": ("25.11.2", "debian:bookworm"),
    }
    assert read.clusters["two"].package_names == ("expect",)
    assert read.release_of(read.clusters["three"]) == "24.11"


def test_choice_names_an_origin_for_all_parts_or_for_one(tmp_path: Path) -> None:
    path = tarball(tmp_path / "new=1.tar.bz2", "25.11.2")
    text = f"clusters: {{a: {{{ONE_HOST}}}, b: {{{ONE_HOST.replace('box', 'b')}}}}}"
    read = load(tmp_path, text, f"source:{path},base:ubuntu:24.04", "b=base:debian:bookworm")
    assert [
        (part.origin.base, part.origin.version) for part in read.clusters.values() if part.origin
    ] == [
        ("ubuntu:24.04", "25.11.2"),
        ("debian:bookworm", "22.05"),
    ]
    read = load(tmp_path, f"source: {path.name}\n{text}", "24.11")
    assert {part.origin for part in read.clusters.values()} == {None}


@pytest.mark.parametrize("choice", ["source:", "source:a,source:b", "99.99", "from:x"])
def test_choice_that_is_neither_a_release_nor_an_origin_is_refused(choice: str) -> None:
    with pytest.raises(UsageError):
        scenario.split_choice(choice)


def test_source_without_its_key_is_refused_with_a_hint() -> None:
    with pytest.raises(UsageError, match=r"unknown release") as refused:
        scenario.split_choice("alpha=slurm-25.11.2.tar.bz2")
    assert "source:slurm-25.11.2.tar.bz2" in str(refused.value.hint)


def test_what_is_wrong_with_an_origin_is_reported_at_its_place(tmp_path: Path) -> None:
    text = (
        "clusters:\n  a:\n    source: none.tar.bz2\n    controller: box\n    nodes: [{name: box}]"
    )
    with pytest.raises(ScenarioError) as caught:
        load(tmp_path, text)
    (problem,) = caught.value.problems
    assert (problem.line, problem.where) == (3, "clusters.a.source")
    assert "none.tar.bz2: No such file or directory" in problem.message
