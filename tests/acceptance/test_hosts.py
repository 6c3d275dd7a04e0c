"""Every host runs what it should, configured as rendered, and munge joins them."""

from __future__ import annotations

import hashlib
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from testinfra.host import Host

from harness import options, render
from harness.plan import DAEMONS, Plan
from harness.rundir import RunDir
from harness.ssh import Ssh

UNITS = (*DAEMONS, "slurmrestd")
PROCESS_OF = {"munge": "munged", "mariadb": "mariadbd"}


def everywhere(function, hosts):  # noqa: ANN001, ANN201  any function of a host's name
    """Call a function for each host, side by side; return host -> result."""
    with ThreadPoolExecutor(8) as pool:
        return dict(zip(hosts, pool.map(function, hosts), strict=True))


def test_every_host_runs_its_daemons_under_systemd_and_no_others(ssh: Ssh, plan: Plan) -> None:
    wrong = []

    def look(name: str) -> str:
        properties = ["--property=Id,ActiveState,UnitFileState,ControlGroup"]
        units = ssh.run(name, ["systemctl", "show", *properties, *(f"{unit}.service" for unit in UNITS)]).stdout
        names = "|".join(PROCESS_OF.get(unit, unit) for unit in UNITS)
        script = f"for pid in $(pgrep -x '{names}'); do echo $(cat /proc/$pid/comm) $(tail -1 /proc/$pid/cgroup); done"
        return units + "\n\n" + ssh.run(name, ["sh", "-c", script]).stdout

    seen = everywhere(look, [host.name for host in plan.hosts])
    for host in plan.hosts:
        *units, processes = seen[host.name].split("\n\n")
        facts = [dict(line.split("=", 1) for line in unit.strip().splitlines()) for unit in units]
        running = {fact["Id"].removesuffix(".service") for fact in facts if fact["ActiveState"] == "active"}
        enabled = {fact["Id"].removesuffix(".service") for fact in facts if fact["UnitFileState"] == "enabled"}
        if running != {*host.daemons}:
            wrong.append(f"{host.name}: runs {sorted(running)}, should run {sorted(host.daemons)}")
        if enabled != {*host.daemons}:
            wrong.append(f"{host.name}: starts {sorted(enabled)} at boot, should start {sorted(host.daemons)}")
        for line in processes.strip().splitlines():
            process, cgroup = line.split(" ", 1)
            unit = next((unit for unit, name in PROCESS_OF.items() if name == process), process)
            if not re.search(rf"/{unit}\.service(/|$)", cgroup):
                wrong.append(f"{host.name}: {process} runs outside of {unit}.service: {cgroup}")
    assert not wrong, "\n".join(wrong)


def test_every_slurm_daemon_is_of_the_release_that_the_scenario_names(ssh: Ssh, plan: Plan) -> None:
    def look(name: str) -> str:
        daemons = [daemon for host in plan.hosts if host.name == name for daemon in host.daemons]
        script = "; ".join(f"{daemon} -V" for daemon in daemons if daemon.startswith("slurm"))
        return ssh.run(name, ["sh", "-c", script]).stdout

    for name, answer in everywhere(look, [host.name for host in plan.hosts]).items():
        release = next(host.release for host in plan.hosts if host.name == name)
        for line in answer.splitlines():
            assert re.fullmatch(rf"slurm\S* {release}\.\d+\S*", line), f"{name} has {line}, not {release}"
        assert answer, name


def test_every_file_is_the_rendered_one_with_owner_and_mode(run: RunDir, plan: Plan, hosts: dict[str, Host]) -> None:
    tree = render.render(plan)
    secrets = run.secrets()

    def look(name: str) -> list[str]:
        wrong = []
        for file in tree[name]:
            there = hosts[name].file(file.path)
            if not there.exists:
                wrong.append(f"{name}:{file.path} is missing")
                continue
            wanted = hashlib.sha256(options.reveal(file.text, secrets).encode()).hexdigest()
            if there.sha256sum != wanted:
                wrong.append(f"{name}:{file.path} is not the rendered file")
            owner = (there.user, there.group, f"{there.mode:04o}")
            if owner != (file.owner, file.group, file.mode):
                wrong.append(f"{name}:{file.path} is {owner}, should be {(file.owner, file.group, file.mode)}")
        slurm_files = {file.path for file in tree[name] if file.path.startswith("/etc/slurm/")}
        # What neither the harness nor a package put there would change what the daemons do.
        foreign = "find /etc/slurm -type f ! -exec dpkg --search {} ';' -print 2>/dev/null"
        found = [line for line in hosts[name].check_output(foreign).splitlines() if line.startswith("/")]
        wrong += [f"{name}:{path} was not rendered" for path in found if path not in slurm_files]
        return wrong

    wrong = everywhere(look, [host.name for host in plan.hosts])
    assert not any(wrong.values()), "\n".join(line for lines in wrong.values() for line in lines)


@pytest.mark.needs("users")
def test_munge_credential_of_every_host_decodes_on_every_other_with_the_same_uid(ssh: Ssh, plan: Plan) -> None:
    names = [host.name for host in plan.hosts]
    user, facts = next(iter(plan.scenario.users.items()))
    credentials = everywhere(lambda name: ssh.run(name, ["munge", "--no-input"], user=user).stdout.strip(), names)
    decode = "while read -r credential; do echo $credential | unmunge; echo end; done"

    def decode_all(name: str) -> list[str]:
        return ssh.run(name, ["sh", "-c", decode], stdin="\n".join(credentials.values()) + "\n").stdout.split("end\n")[
            :-1
        ]

    for decoder, answers in everywhere(decode_all, names).items():
        for encoder, answer in zip(names, answers, strict=True):
            assert "Success (0)" in answer, f"{decoder} refuses a credential of {encoder}: {answer}"
            assert f"({facts.uid})" in re.search("UID:.*", answer)[0], f"{decoder} sees another uid than {encoder}"


@pytest.mark.needs("users")
def test_munge_credential_of_a_foreign_key_is_refused(ssh: Ssh, plan: Plan) -> None:
    stranger = plan.hosts[-1].name
    # A second munged with a key of its own, on the same host so that nothing but the key differs.
    script = """
        set -e
        directory=$(mktemp -d) && chmod 0755 $directory && chown munge: $directory && cd $directory
        run="runuser -u munge --"
        $run dd if=/dev/urandom of=key bs=64 count=1 status=none && $run chmod 0400 key
        $run munged --socket=$directory/socket --key-file=$directory/key --pid-file=$directory/pid \
            --log-file=$directory/log --seed-file=$directory/seed
        munge --no-input --socket=$directory/socket
        pid=$(cat pid) && kill $pid && while [ -e /proc/$pid ]; do sleep 0.02; done && rm -rf $directory
    """
    credential = ssh.run(stranger, ["sh", "-c", script]).stdout
    assert credential.startswith("MUNGE:"), credential
    for host in plan.hosts:
        answer = ssh.run(host.name, ["unmunge"], stdin=credential, check=False)
        assert answer.exit_code != 0, f"{host.name} accepts a credential made with another key"
        assert "Invalid credential" in answer.stderr + answer.stdout, answer


@pytest.mark.needs("sites")
def test_sites_reach_one_another_only_at_slurms_own_ports(ssh: Ssh, plan: Plan) -> None:
    """The port 873 is listened at on purpose, so that a refusal is the gateway's and not the host's."""
    first = plan.hosts[0]
    other = next(host for host in plan.hosts if host.site != first.site)
    server = (
        "import socket; s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1);"
        "s.bind(('', 873)); s.listen()"
    )
    ask = "timeout 5 bash -c '</dev/tcp/{}/{}' 2>/dev/null && echo open || echo closed"
    neighbour = next(host for host in plan.hosts if host.site == first.site and host != first)
    script = f'systemd-run --quiet --unit=listener python3 -c "{server}\nimport time; time.sleep(60)"'
    ssh.run(first.name, ["sh", "-c", script])
    try:
        wait = f'for i in $(seq 50); do [ "$({ask.format("localhost", 873)})" = open ] && exit; sleep 0.1; done; exit 1'
        ssh.run(first.name, ["sh", "-c", wait])
        near = ssh.run(neighbour.name, ["sh", "-c", ask.format(first.name, 873)]).stdout.strip()
        far = ssh.run(other.name, ["sh", "-c", ask.format(first.name, 873)]).stdout.strip()
        allowed = ssh.run(other.name, ["sh", "-c", ask.format(first.name, 22)]).stdout.strip()
    finally:
        ssh.run(first.name, ["systemctl", "stop", "listener"], check=False)
    assert (near, far, allowed) == ("open", "closed", "open")
