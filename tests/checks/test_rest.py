"""In every version of the REST API, a token allows what its user may do.

Without a token, nothing is allowed.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pytest
from conftest import (
    ENDED_BY_ITS_OWN_SIGNAL,
    Jobs,
    address_of,
    everywhere,
    listening,
    wait_for_records,
)

from harness import releases, render, slurm_options
from harness.cluster import slurm
from harness.cluster.slurm import SlurmCluster, job_key
from harness.errors import ClusterError, CommandFailed
from harness.plan import Plan
from harness.rundir import RunDir
from harness.scenario import Cluster
from harness.ssh import Ssh
from harness.verify import job_trace
from harness.wait import wait_until

# These packages take as long to load as all other checks: only what uses them imports them.
if TYPE_CHECKING:
    import httpx2

pytestmark = [pytest.mark.needs("rest", "users"), pytest.mark.provokes()]

# These paths change the cluster although the method is GET.
CHANGES = ("/reconfigure/", "/requeue")
# slurmrestd answers these itself, or only reports whether slurmctld listens.
ANY_TOKEN_WILL_DO = ("/openapi", "/ping/")
# The administrators, whose requests slurmctld treats like those of SlurmUser.
ADMINISTRATORS = ("root", "slurm")
# Where Slurm contradicts its own OpenAPI document: a part of the URL, the problem, and its cause.
DISAGREEMENTS = (
    (
        r"/v0\.0\.3[5-8]/",
        "is not of type|for not nullable|under any of|under the",
        "the documents are written by hand",
    ),
    (
        r"/v0\.0\.3[5-8]/(wckeys?\b|config)",
        "Nothing found with query",
        "having no wckey is an error",
    ),
    (r"/slurmdb/v0\.0\.36/diag", "answers 500", "it does not answer administrators either"),
    (
        r"/v0\.0\.4\d/",
        "'[^']+/[^']+' is a required",
        "nested fields are required at the top level",
    ),
    (
        r"/v0\.0\.4\d/jobs?/",
        "job_resources: None",
        "a job that never ran has null instead of an object",
    ),
    (
        r"/jobs/state/",
        "job_id: .* 'integer'|'last_(backfill|update)' is a required",
        "ids are strings, times are missing",
    ),
    (
        r"/resources/",
        r"gres/\*/index: None",
        "a gres without devices has null instead of a string",
    ),
    (
        r"/instances?/",
        "'instances' is a required property",
        "the list is missing if there is no instance",
    ),
)
# Requests that crash slurmrestd if the token is refused, because it reads an answer that it never
# received.
DEADLY = r"delete /slurmdb/v0\.0\.3[67]/qos/"
# Seconds after which an answer is so late that slurmrestd may have waited for another daemon.
LATE = 5
# What a host runs to find out whether it reaches each daemon, and how long, in seconds, that takes.
REACHES = {
    "slurmctld": "scontrol show partition",
    "slurmdbd": "sacctmgr --noheader show cluster",
}
PATIENCE = 30


@dataclass(frozen=True)
class Api:
    """The REST API of a cluster, reached through SSH.

    `unreached` are the daemons that slurmrestd's host cannot reach, and slurmrestd itself if it
    did not answer in time. Once there are any, requests fail at once, because each would wait for
    a timeout.
    """

    cluster: SlurmCluster
    host: str
    client: httpx2.Client
    ssh: Ssh
    daemons: tuple[str, ...]
    unreached: list[str] = field(default_factory=list)

    @cached_property
    def document(self) -> dict[str, Any]:
        """The OpenAPI document."""
        return self.ask("GET", "/openapi/v3", "root").json()

    def token(self, user: str, lifespan: int = 600) -> str:
        """Return a token for a user, as an administrator gets it, valid for `lifespan` seconds."""
        return self.cluster.token(user, lifespan)

    def ask(
        self, method: str, path: str, user: str, token: str | None = None, **more: Any
    ) -> httpx2.Response:
        """Send a request as a user, with a new token unless one is given."""
        headers = {"X-SLURM-USER-NAME": user, "X-SLURM-USER-TOKEN": token or self.token(user)}
        return self.send(method, path, headers=headers, **more)

    def send(self, method: str, path: str, **more: Any) -> httpx2.Response:
        """Send a request; ClusterError if there is no answer, or the host cannot reach a daemon.

        Whether it does is looked at if the answer is late.
        """
        import httpx2

        if self.unreached:
            raise ClusterError("\n".join(self.unreached))
        began = time.monotonic()
        try:
            return self.client.request(method, path, **more)
        except httpx2.TransportError as error:
            problem = f"slurmrestd on {self.host} does not answer {method} {path}: {error}"
            if isinstance(error, httpx2.TimeoutException):
                self.unreached.append(problem)
            raise ClusterError(problem) from error
        finally:
            if time.monotonic() - began > LATE:
                self.look_for_daemons()

    def look_for_daemons(self) -> None:
        """Fail if slurmrestd's host cannot reach the daemons that slurmrestd asks."""
        unreached = []
        for daemon in self.daemons:
            command = ["timeout", str(PATIENCE), *REACHES[daemon].split()]
            answer = self.ssh.run(self.host, command, check=False)
            if answer.exit_code:
                problem = " ".join(answer.stderr.split()) or f"no answer in {PATIENCE} s"
                unreached.append(f"{self.host} cannot reach {daemon}: {problem}")
        self.unreached[:0] = unreached
        if self.unreached:
            raise ClusterError("\n".join(self.unreached))

    def get(self, path: str, user: str, token: str | None = None) -> dict[str, Any]:
        """Return the body of the answer to a user; fail if it has errors."""
        answer = self.ask("GET", path, user, token)
        failed = answer.status_code != 200 or answer.json()["errors"]
        assert not failed, f"GET {path} as {user}: {self.reason(answer)}"
        return answer.json()

    def reason(self, answer: httpx2.Response) -> str:
        """Return the status and errors of an answer, and where slurmrestd may be to blame.

        ClusterError if its host cannot reach a daemon.
        """
        is_json = answer.headers.get("content-type", "").startswith("application/json")
        if answer.status_code < 500 or not is_json:
            return f"{answer.status_code} {answer.text}"
        self.look_for_daemons()
        errors = [
            ": ".join(filter(None, (error.get("description"), error.get("error"))))
            for error in answer.json().get("errors", [])
        ]
        return (
            f"{answer.status_code} {'; '.join(errors) or answer.text}: "
            "slurmrestd may have read a different slurm.conf, or slurmdbd a different key: "
            f"commands on {self.host} reach {' and '.join(self.daemons)}"
        )

    def versions(self, family: str = "slurm") -> list[str]:
        """Return the API versions of slurmctld ("slurm") or slurmdbd ("slurmdb"), oldest first."""
        matches = (re.match(rf"/{family}/(v[^/]+)/", path) for path in self.document["paths"])
        return sorted({match[1] for match in matches if match})

    def operations(self, *methods: str) -> list[tuple[str, str, dict[str, Any]]]:
        """Return the method, path and description of all operations with these methods."""
        return [
            (method, path, described[method])
            for path, described in self.document["paths"].items()
            for method in methods
            if method in described and not path.endswith(CHANGES)
        ]


@pytest.fixture(scope="session")
def served(plan: Plan) -> tuple[str, Cluster]:
    """The first cluster with a REST API."""
    return next((name, cluster) for name, cluster in plan.scenario.clusters.items() if cluster.rest)


@pytest.fixture(scope="session")
def api(
    ssh: Ssh, clusters: dict[str, SlurmCluster], served: tuple[str, Cluster], plan: Plan
) -> Iterator[Api]:
    """The REST API of that cluster."""
    import httpx2

    name, cluster = served
    host = cluster.rest.host or cluster.controller
    with (
        ssh.forwarded(host, f"{host}:{cluster.rest.port}") as socket,
        httpx2.Client(
            transport=httpx2.HTTPTransport(uds=str(socket)), base_url="http://slurm", timeout=30
        ) as client,
    ):
        daemons = ("slurmctld", *["slurmdbd"] * bool(plan.scenario.accounting))
        yield Api(clusters[name], host, client, ssh, daemons)


# Sends a request that does not fit into one packet, with the token in its input.
LARGE_REQUEST = """
import http.client, sys
host, port, path = sys.argv[1:]
connection = http.client.HTTPConnection(host, int(port), timeout=20)
headers = {"X-SLURM-USER-NAME": "root", "X-SLURM-USER-TOKEN": sys.stdin.read(), "X-Pad": "x" * 8000}
connection.request("GET", path, headers=headers)
connection.getresponse().read()
"""


def test_slurmrestd_runs_as_its_own_user_without_privileges(api: Api, ssh: Ssh) -> None:
    script = (
        "cat /proc/$(systemctl show --property=MainPID --value slurmrestd)/status; getent passwd"
    )
    status, *users = re.split(
        r"(?=^root:)", ssh.run(api.host, ["sh", "-c", script]).stdout, flags=re.MULTILINE
    )
    facts = dict(line.split(":", 1) for line in status.splitlines())
    name_of = {
        line.split(":")[2]: line.split(":")[0] for text in users for line in text.splitlines()
    }
    accounts = {name_of[uid] for uid in facts["Uid"].split()}
    assert accounts == {"slurmrestd"}, f"slurmrestd on {api.host} runs as {', '.join(accounts)}"
    rights = {
        name: facts[name].strip()
        for name in ("CapPrm", "CapEff", "CapBnd", "CapAmb")
        if int(facts[name], 16)
    }
    assert not rights, f"slurmrestd has capabilities: {rights}"
    assert facts["NoNewPrivs"].strip() == "1", f"slurmrestd on {api.host} lacks NoNewPrivileges"
    ids = {*facts["Gid"].split(), *facts["Groups"].split()}
    answer = ssh.run(api.host, ["getent", "group", *ids]).stdout
    groups = sorted(line.split(":")[0] for line in answer.splitlines())
    assert groups == ["slurmrestd"], f"slurmrestd is in the groups {groups}"


def test_slurmrestd_listens_only_on_its_hosts_own_address(
    api: Api, ssh: Ssh, served: tuple[str, Cluster], plan: Plan
) -> None:
    """The other hosts at its site can reach it at this address."""
    own, port = address_of(ssh, api.host), served[1].rest.port
    addresses = listening(ssh, api.host, port)
    assert addresses == {f"{own}:{port}"}, (
        f"slurmrestd on {api.host} listens at {', '.join(sorted(addresses)) or 'no address'}"
    )
    site = next(host.site for host in plan.hosts if host.name == api.host)
    others = [host.name for host in plan.permanent_hosts() if host.site == site]
    connect = ["timeout", "10", "bash", "-c", f": < /dev/tcp/{api.host}/{port}"]
    # It gets the token from its input: other users can read its arguments.
    path, token = f"/slurm/{api.versions()[0]}/ping/", api.token("root")
    request = ["python3", "-c", LARGE_REQUEST, api.host, str(port), path]

    def look(name: str) -> str:
        answer = ssh.run(name, connect, check=False)
        if answer.exit_code:
            problem = answer.stderr.strip() or "no answer in 10 s"
            return f"{name} cannot reach slurmrestd at {api.host}:{port}: {problem}"
        answer = ssh.run(name, request, stdin=token, check=False)
        if answer.exit_code:
            problem = answer.stderr.strip().splitlines()[-1]
            return f"{name} gets no answer to a request of 8000 bytes from slurmrestd: {problem}"
        return ""

    wrong = [problem for problem in everywhere(look, others).values() if problem]
    assert not wrong, "\n".join(wrong)


def test_slurmrestd_serves_every_version_of_the_api_that_its_release_has(
    api: Api, plan: Plan, served: tuple[str, Cluster]
) -> None:
    known = releases.get(plan.releases()[served[0]]).plugins
    wanted = sorted(
        name for name in known.get("data_parser") or known["openapi"] if name.startswith("v")
    )
    wrong = [
        f"slurmrestd on {api.host} serves versions {', '.join(versions) or 'none'} of {family}, "
        f"should serve {', '.join(expected) or 'none'}"
        for family, expected in (
            ("slurm", wanted),
            ("slurmdb", wanted if plan.scenario.accounting else []),
        )
        if (versions := api.versions(family)) != expected
    ]
    assert not wrong, "\n".join(wrong)


def environment(version: str, **variables: str) -> dict[str, str] | list[str]:
    """Return the environment of a job, which is a mapping until v0.0.38."""
    variables["PATH"] = "/usr/local/bin:/usr/bin:/bin"
    return (
        variables
        if version < "v0.0.39"
        else [f"{name}={value}" for name, value in variables.items()]
    )


def description(version: str, plan: Plan, user: str) -> dict[str, Any]:
    """Return the fields that every job needs."""
    return {
        **({"account": accounts[0]} if (accounts := plan.scenario.users[user].accounts) else {}),
        "comment": slurm.MARK,
        "current_working_directory": f"/home/{user}",
        "environment": environment(version),
        "standard_output": "/dev/null",
    }


def submit(
    api: Api, version: str, plan: Plan, user: str, script: str, **fields: Any
) -> httpx2.Response:
    body = {"job": description(version, plan, user) | fields, "script": script}
    return api.ask("POST", f"/slurm/{version}/job/submit", user, json=body)


def submitted(api: Api, version: str, plan: Plan, jobs: Jobs, body: str, **fields: Any) -> int:
    """Submit a trace job of the first user, with further fields, and return its id."""
    answer = submit(api, version, plan, jobs.user, job_trace.script(body), **fields)
    assert answer.status_code == 200, f"{version}: {answer.text}"
    jobs.submitted.append(job_key(api.cluster.name, answer.json()["job_id"]))
    return jobs.submitted[-1][1]


def words(value: str | list[str]) -> list[str]:
    """Return a job's state and flags, which are a list in newer versions."""
    return [value] if isinstance(value, str) else value


def test_user_with_a_token_submits_queries_and_cancels_in_every_version(
    api: Api, plan: Plan, jobs: Jobs, users: list[str]
) -> None:
    user = users[0]
    token = api.token(user)
    body = f'{job_trace.WHERE}\necho "note.variable=$OF_THE_CHECK" >> "$trace"'
    todo = {
        version: [
            submitted(
                *(api, version, plan, jobs, body),
                name=f"rest-{version}",
                environment=environment(version, OF_THE_CHECK=version),
                standard_output=job_trace.OUTPUT,
            ),
            submitted(api, version, plan, jobs, job_trace.UNTIL_CANCELLED),
        ]
        for version in api.versions()
    }
    for version, (_, cancelled) in todo.items():
        answer = api.ask("DELETE", f"/slurm/{version}/job/{cancelled}", user, token)
        assert answer.status_code == 200, f"{version}: {answer.text}"

    def look() -> dict[str, list[list[str]]]:
        seen = {}
        for version, job_ids in todo.items():
            answered_jobs = [
                api.get(f"/slurm/{version}/job/{job_id}", user, token)["jobs"][0]
                for job_id in job_ids
            ]
            uids = {job["user_id"] for job in answered_jobs}
            assert uids == {plan.scenario.users[user].uid}, version
            seen[version] = [words(job["job_state"]) for job in answered_jobs]
        return seen

    done = {version: [["COMPLETED"], ["CANCELLED"]] for version in todo}
    wait_until(
        look,
        lambda seen: seen == done,
        what="a job of each version to complete, and one to be cancelled",
        timeout=120,
        give_up=lambda seen: any(["FAILED"] in states for states in seen.values()),
    )
    seen = jobs.traces()
    for version, (job_id, _) in todo.items():
        ran = [trace for trace in seen if trace.key == job_key(api.cluster.name, job_id)]
        assert len(ran) == 1, f"{version}: job {job_id} ran {len(ran)} times"
        assert ran[0].name == f"rest-{version}", (
            f"{version}: the job submitted as rest-{version} is {ran[0].name}"
        )
        variable = ran[0].notes.get("variable")
        assert variable == version, (
            f"{version}: the job has OF_THE_CHECK={variable}, was submitted with {version}"
        )
        wrong = job_trace.misplaced(ran[0])
        assert not wrong, f"{version}: {'; '.join(wrong)}"


@pytest.mark.needs("two_users")
def test_token_of_a_user_cannot_cancel_a_job_of_another_user(
    api: Api, plan: Plan, jobs: Jobs, users: list[str]
) -> None:
    """Checks the job itself: 23.11 and later report no error to a user who may not cancel it."""
    for version in api.versions():
        job_id = submitted(api, version, plan, jobs, job_trace.UNTIL_CANCELLED)
        jobs.wait_until_begun(api.cluster, [job_id])
        answer = api.ask("DELETE", f"/slurm/{version}/job/{job_id}", users[1])
        state = api.cluster.job(job_id).state
        assert state == "RUNNING", (
            f"{version}: {users[1]} cancelled the job of {users[0]}: {answer.text}"
        )
        api.cluster.run("scancel", str(job_id))
        api.cluster.wait_for([job_id], {"CANCELLED"})


def test_token_of_an_administrator_can_change_what_a_users_cannot(
    api: Api, plan: Plan, users: list[str]
) -> None:
    node = plan.scenario.clusters[api.cluster.name].node_names()[0]
    account = {"name": "rest", "description": "of a check", "organization": "of a check"}
    account |= {"coordinators": [], "associations": []}
    requests = [
        ("POST", f"/slurm/{version}/node/{node}", {"comment": "of a check"})
        for version in api.versions()
    ]
    for version in api.versions("slurmdb"):
        requests.append(("POST", f"/slurmdb/{version}/accounts/", {"accounts": [account]}))
        requests.append(("DELETE", f"/slurmdb/{version}/account/rest", None))
    offered = {
        re.sub("{.*}", "{}", path).rstrip("/") for _, path, _ in api.operations("post", "delete")
    }
    wanted = [
        request
        for request in requests
        if re.sub(r"(node|account)/[^/]+$", r"\1/{}", request[1]).rstrip("/") in offered
    ]
    assert wanted
    try:
        for method, path, body in wanted:
            for user in (users[0], *ADMINISTRATORS[: 2 if method == "POST" else 1]):
                answer = api.ask(method, path, user, json=body)
                allowed = answer.status_code == 200 and not answer.json()["errors"]
                assert allowed == (user in ADMINISTRATORS), (
                    f"{method} {path} as {user}: {api.reason(answer)}"
                )
    finally:
        api.cluster.run("scontrol", "update", f"NodeName={node}", "Comment=", check=False)
        if plan.scenario.accounting:
            api.cluster.run("sacctmgr", "--immediate", "delete", "account", "rest", check=False)


def test_rest_and_the_commands_agree_about_nodes_and_partitions(api: Api) -> None:
    wanted = {
        "nodes": sorted(node.name for node in api.cluster.nodes()),
        "partitions": sorted(partition.name for partition in api.cluster.partitions()),
    }
    for version in api.versions():
        for kind, names in wanted.items():
            listed = sorted(
                item["name"] for item in api.get(f"/slurm/{version}/{kind}/", "root")[kind]
            )
            assert listed == names, f"{version}: {kind} are {listed}, should be {names}"


def test_answers_are_as_new_as_the_request(api: Api) -> None:
    """An answer has what was changed before the request, even if the same was asked before."""
    node = api.cluster.nodes()[0].name
    paths = [f"/slurm/{version}/node/{node}" for version in api.versions()]
    try:
        for comment in (secrets.token_hex(4), secrets.token_hex(4)):
            api.cluster.run("scontrol", "update", f"NodeName={node}", f"Comment={comment}")
            seen = {path: api.get(path, "root")["nodes"][0]["comment"] for path in paths}
            old = [
                f"{path} is answered with comment {text!r}, although it was {comment!r} when asked"
                for path, text in seen.items()
                if text != comment
            ]
            assert not old, "\n".join(old)
    finally:
        api.cluster.run("scontrol", "update", f"NodeName={node}", "Comment=")


@pytest.mark.needs("accounting")
def test_rest_and_the_commands_agree_about_accounting(api: Api, plan: Plan, jobs: Jobs) -> None:
    lists = {version: f"/slurmdb/{version}/jobs/" for version in api.versions("slurmdb")}
    for path in lists.values():
        api.get(path, "root")  # answers that must not be given again
    job_id = jobs.submit_here(api.cluster, "exit 7")
    api.cluster.wait_for([job_id], {"FAILED"})
    wait_for_records(api.cluster, {job_id: ("FAILED", 7)})
    record = next(
        record
        for record in api.cluster.records("--local", "--allocations")
        if record.job_id == job_id
    )
    sacctmgr = api.cluster.run(
        "sacctmgr", "--noheader", "--parsable2", "show", "association", "format=account,user"
    ).stdout
    for version in lists:
        answered_jobs = api.get(f"/slurmdb/{version}/job/{job_id}", "root")["jobs"]
        wanted = (record.user, record.account, [record.state], record.node_list)
        assert [
            (job["user"], job["account"], words(job["state"]["current"]), job["nodes"])
            for job in answered_jobs
        ] == [wanted], version
        # Until v0.0.38 the exit code of every job is reported as 0.
        if version > "v0.0.38":
            exit_code = answered_jobs[0]["exit_code"]["return_code"]["number"]
            assert exit_code == record.exit_code, version
        listed_jobs = {job["job_id"] for job in api.get(lists[version], "root")["jobs"]}
        assert job_id in listed_jobs, (
            f"{lists[version]} lacks job {job_id}, which accounting has: the answer is out of date"
        )
        names = {user["name"] for user in api.get(f"/slurmdb/{version}/users/", "root")["users"]}
        assert names == {"root", *plan.scenario.users}, version
        rows = api.get(f"/slurmdb/{version}/associations/", "root")["associations"]
        associations = {f"{row['account']}|{row['user'] or ''}" for row in rows}
        assert associations == {*sacctmgr.split()}, version


@pytest.fixture
def something(api: Api, plan: Plan, jobs: Jobs) -> Iterator[dict[str, str]]:
    """Values for the parameters of paths, which name objects that exist."""
    cluster, user = plan.scenario.clusters[api.cluster.name], plan.scenario.users[jobs.user]
    node = cluster.node_names()[0]
    job_id = jobs.submit_here(api.cluster, job_trace.UNTIL_CANCELLED)
    api.cluster.wait_for([job_id], {"RUNNING"})
    if plan.scenario.accounting:
        wait_for_records(api.cluster, {job_id: ("RUNNING", None)})
    reservation = (
        "StartTime=now+1day",
        "Duration=1",
        f"Nodes={node}",
        f"Users={jobs.user}",
        "Flags=ignore_jobs",
    )
    api.cluster.run("scontrol", "create", "reservation", "ReservationName=rest", *reservation)
    account, name = next(iter(user.accounts), "none"), jobs.user
    values = {
        "job_id": job_id,
        "node_name": node,
        "partition_name": next(iter(cluster.partitions)),
        "qos": "normal",
    }
    values |= {
        "reservation_name": "rest",
        "cluster_name": api.cluster.name,
        "account_name": account,
        "name": name,
    }
    values |= {"user_name": name, "qos_name": "normal", "id": "none", "wckey": "none"}
    # Not a parameter of the path, but without it a request for one association returns all.
    values["association/"] = (
        f"association/?account={account}&user={name}&cluster={api.cluster.name}"
    )
    yield {name: str(value) for name, value in values.items()}
    api.cluster.run("scontrol", "delete", "ReservationName=rest")


def filled(path: str, values: dict[str, str]) -> str:
    """Return a path with values for its parameters."""
    url = re.sub(r"{(\w+)}", lambda match: values[match[1]], path)
    return re.sub(r"/association/?$", f"/{values['association/']}", url)


def test_every_answer_conforms_to_the_openapi_document(api: Api, something: dict[str, str]) -> None:
    token = api.token("root", lifespan=3600)
    wrong, count = [], 0
    for method, path, described in api.operations("get"):
        if "/v0" not in path:
            continue
        url = filled(path, something)
        began = time.monotonic()
        answer = api.ask(method, url, "root", token)
        known = [
            re.compile(pattern) for where, pattern, _ in DISAGREEMENTS if re.search(where, url)
        ]
        unknown = [
            problem
            for problem in problems(answer, described, api.document)
            if not any(pattern.search(problem) for pattern in known)
        ]
        # Each further request would wait for the same timeout.
        timed_out = answer.status_code >= 500 and time.monotonic() - began > LATE
        assert not (unknown and timed_out), f"GET {url}: {api.reason(answer)}"
        wrong += [f"{url}: {problem}" for problem in unknown]
        count += 1
    assert count
    assert not wrong, "\n".join(wrong)


def problems(
    answer: httpx2.Response, described: dict[str, Any], document: dict[str, Any]
) -> Iterator[str]:
    """Yield how an answer differs from its description, or that it is an error."""
    from openapi_schema_validator import OAS30Validator

    body = answer.json()
    errors = body.get("errors") if isinstance(body, dict) else []
    if answer.status_code != 200 or any(error.get("error_number", 1) for error in errors):
        yield f"answers {answer.status_code}: {errors}"
        return
    content = described["responses"]["200"].get("content", {}).get("application/json", {})
    validator = OAS30Validator(
        {**content.get("schema", {}), "components": document.get("components", {})}
    )
    for error in validator.iter_errors(body):
        place = "/".join(
            "*" if isinstance(part, int) else str(part) for part in error.absolute_path
        )
        yield f"{place}: {error.message}"


@pytest.fixture
def bad_tokens(api: Api, run: RunDir, users: list[str]) -> dict[str, dict[str, str]]:
    """Headers that name a user without a valid token of that user."""
    import jwt

    key, now = run.secrets()["jwt_key"], int(time.time())
    claims = {"iat": now - 120, "exp": now + 600, "sun": users[0]}
    tokens = {
        # The first, before it is much older than that.
        "expired a minute ago": jwt.encode(claims | {"exp": now - 60}, key, "HS256"),
        "not a token at all": "nonsense",
        "signed with a foreign key": jwt.encode(claims, secrets.token_hex(32), "HS256"),
        "not signed": jwt.encode(claims, None, "none"),
        "another user's": api.token(users[1]),
    }
    return {
        kind: {"X-SLURM-USER-NAME": users[0], "X-SLURM-USER-TOKEN": token}
        for kind, token in tokens.items()
    }


@pytest.mark.needs("two_users")
def test_request_without_a_valid_token_is_refused_everywhere(
    api: Api,
    plan: Plan,
    users: list[str],
    something: dict[str, str],
    bad_tokens: dict[str, dict[str, str]],
) -> None:
    """Sends requests that change something last: if one were not refused, it would take effect."""
    for methods in (("get",), ("post", "put", "delete")):
        operations = api.operations(*methods)
        answers = {
            (method, path): api.send(method.upper(), filled(path, something))
            for method, path, _ in operations
        }
        open_ = [
            f"{method} {path}"
            for (method, path), answer in answers.items()
            if answer.status_code != 401
        ]
        assert not open_, f"answered without a token: {open_}"

    for kind, headers in bad_tokens.items():
        for methods in (("get",), ("delete",)):
            answers = {
                path: api.send(method.upper(), filled(path, something), headers=headers)
                for method, path, _ in api.operations(*methods)
                if not any(part in path for part in ANY_TOKEN_WILL_DO)
                and not re.match(DEADLY, f"{method} {path}")
            }
            taken = [path for path, answer in answers.items() if not refused(answer)]
            assert not taken, f"a token ({kind}) is accepted by {taken}"
        for version in api.versions():
            body = {"job": description(version, plan, users[0]), "script": "#!/bin/sh\n"}
            answer = api.send("POST", f"/slurm/{version}/job/submit", headers=headers, json=body)
            assert refused(answer), f"a token ({kind}) is accepted by /slurm/{version}/job/submit"


def accepted(api: Api, answer: httpx2.Response) -> bool:
    """Return True; fail if an answer refuses a request with a valid token."""
    url = answer.request.url.path
    assert not refused(answer), f"a valid token is refused: {url} answers {api.reason(answer)}"
    return True


def refused(answer: httpx2.Response) -> bool:
    """Return whether an answer refuses a request and reveals nothing.

    Until 22.05, some refusals have status 200.
    """
    body = (
        answer.json()
        if answer.headers.get("content-type", "").startswith("application/json")
        else {}
    )
    content = {
        name: value for name, value in body.items() if name not in {"meta", "errors", "warnings"}
    }
    return bool(answer.status_code >= 400 or body.get("errors")) and not has_items(content)


def has_items(value: Any) -> bool:
    """Return whether a value contains a list that is not empty."""
    if isinstance(value, dict):
        return any(map(has_items, value.values()))
    return bool(value) if isinstance(value, list) else False


def test_token_has_the_lifetime_that_was_requested(
    api: Api, users: list[str], served: tuple[str, Cluster]
) -> None:
    import jwt

    lifespan = 8
    before = time.time()
    token = api.token(users[0], lifespan)
    claims = jwt.decode(token, options={"verify_signature": False})
    assert claims["sun"] == users[0]
    assert claims["exp"] - claims["iat"] == lifespan, (
        f"a token requested for {lifespan} s has the claims {claims}"
    )
    assert before - 1 <= claims["iat"] <= time.time() + 1, (
        f"a token issued now has the claims {claims}"
    )
    path = f"/slurm/{api.versions()[-1]}/jobs/"
    last = time.time()  # when the last accepted request was made
    answer = api.ask("GET", path, users[0], token)
    # On a busy machine, the token may have expired by now.
    assert time.time() >= claims["exp"] or accepted(api, answer)

    def look() -> bool:
        nonlocal last
        requested_at = time.time()
        if refused(api.ask("GET", path, users[0], token)):
            return True
        last = requested_at
        return False

    wait_until(look, bool, what=f"the token to be refused after its {lifespan} s", timeout=90)
    late = last - claims["exp"]
    assert late <= 3, f"a token was accepted {late:.0f} s after it had expired"
    assert time.time() >= claims["exp"], "the token was refused too early"
    if most := served[1].rest.max_token_life:
        for requested, allowed in ((most, True), (most + 1, False)):
            answer = api.cluster.run(
                "scontrol", "token", f"lifespan={requested}", user=users[0], check=False
            )
            assert (answer.exit_code == 0) == allowed, (
                f"a token of {requested} s: {answer.stderr or 'was given'}"
            )


def wait_for_slurmdbd(cluster: SlurmCluster) -> None:
    """Wait until slurmdbd answers, because a slurmctld that starts before that logs errors."""
    wait_until(
        lambda: cluster.run("sacctmgr", "--noheader", "show", "cluster"),
        bool,
        what="slurmdbd to answer",
        timeout=90,
        ignore=(CommandFailed,),
    )


@pytest.fixture
def rotate_key(
    ssh: Ssh, plan: Plan, run: RunDir, clusters: dict[str, SlurmCluster]
) -> Iterator[Any]:
    """Return a function that replaces the key everywhere; afterwards, the run's key is restored.

    The file is replaced, because daemons map it into memory: SIGBUS ends one that verifies a token
    while an overwritten file is empty. See _init_hs256() in Slurm's auth_jwt.c.
    """
    tree = render.render(plan)
    places = [
        host
        for host in plan.hosts
        if any(file.path == slurm_options.JWT_KEY for file in tree[host.name])
    ]

    path, new = slurm_options.JWT_KEY, f"{slurm_options.JWT_KEY}.new"
    replace = f"cp --preserve {path} {new} && cat > {new} && mv {new} {path}"

    def rotate(key: str) -> None:
        for daemon in ("slurmdbd", "slurmctld"):
            for host in places:
                if daemon in host.daemons:
                    ssh.run(host.name, ["sh", "-c", replace], stdin=key)
                    ssh.run(host.name, ["systemctl", "restart", daemon])
            if daemon == "slurmdbd" and plan.scenario.accounting:
                wait_for_slurmdbd(next(iter(clusters.values())))
        slurm.wait_until_ready(plan, clusters)

    yield rotate
    rotate(run.secrets()["jwt_key"])


@pytest.mark.provokes(ENDED_BY_ITS_OWN_SIGNAL)
def test_tokens_of_an_old_key_are_refused_after_its_rotation(
    api: Api, users: list[str], rotate_key: Any
) -> None:
    paths = [f"/slurm/{api.versions()[-1]}/jobs/"]
    paths += [f"/slurmdb/{version}/users/" for version in api.versions("slurmdb")[-1:]]
    old = api.token(users[0])
    assert all(accepted(api, api.ask("GET", path, users[0], old)) for path in paths)
    rotate_key(secrets.token_hex(32))
    new = wait_until(
        lambda: api.token(users[0]),
        bool,
        what="slurmctld to issue a new token",
        timeout=90,
        ignore=(CommandFailed,),
    )
    for token, wanted in ((old, [True] * len(paths)), (new, [False] * len(paths))):
        which = "old" if token == old else "new"
        seen = [refused(api.ask("GET", path, users[0], token)) for path in paths]
        assert seen == wanted, (
            f"refused with the {which} key's token: {dict(zip(paths, seen, strict=True))}"
        )
