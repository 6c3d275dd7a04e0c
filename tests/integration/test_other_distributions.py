"""A cluster on hosts that are not Debian's."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from harness import releases
from harness.providers import images
from support import SCENARIOS, Harness


@pytest.fixture
def without_dpkg() -> Iterator[str]:
    """An image that looks like one of an EL distribution, where the harness makes a difference."""
    client = docker.from_env(timeout=300)
    text = f"""
        FROM {images.ensure(client, releases.get(releases.DEFAULT), print)}
        RUN printf 'ID=rocky\\nID_LIKE="rhel centos fedora"\\n' > /etc/os-release \\
            && mkdir -p /etc/my.cnf.d && rm -r /etc/mysql \\
            && sed -i '/debian-start/d' /usr/lib/systemd/system/mariadb.service \\
            && printf '[client-server]\\n!includedir /etc/my.cnf.d\\n' > /etc/my.cnf \\
            && systemctl disable ssh && mv /usr/lib/systemd/system/ssh.service \\
               /usr/lib/systemd/system/sshd.service && systemctl enable sshd \\
            && mkdir -p /usr/lib64/faketime \\
            && mv /usr/lib/*-linux-gnu/faketime/*.so.1 /usr/lib64/faketime/ \\
            && rm /usr/bin/dpkg* /usr/bin/apt*
        COPY rpm /usr/bin/rpm
        RUN chmod +x /usr/bin/rpm
        ENTRYPOINT []
    """
    # What the packages contain is known without dpkg's programs.
    rpm = """#!/bin/sh
        [ "$1 $2" = "--query --file" ] && cat /var/lib/dpkg/info/*.list | grep -Fx "$3"
    """
    context = io.BytesIO()
    with tarfile.open(fileobj=context, mode="w") as tar:
        for name, content in {"Dockerfile": text, "rpm": rpm}.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content.encode()))
    context.seek(0)
    image, _ = client.images.build(
        fileobj=context, custom_context=True, tag="slurm-harness-test:el", rm=True
    )
    yield image.tags[0]
    client.images.remove(image.tags[0], force=True)


def test_federation_passes_where_files_and_units_are_those_of_el(
    without_dpkg: str, harness: Harness, tmp_path: Path
) -> None:
    text = (SCENARIOS / "federation-small.yml").read_text()
    assert text.count("    controller: ") == 2
    text = text.replace("    controller: ", f"    image: {without_dpkg}\n    controller: ")
    text = text.replace("accounting:\n", f"accounting:\n  image: {without_dpkg}\n", 1)
    path = tmp_path / "el.yml"
    path.write_text(text)
    done = harness("run", path)
    assert done.returncode == 0, done.stdout + done.stderr
