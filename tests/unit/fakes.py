"""Stand-ins with behaviour, for tests of the harness's own logic."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from harness.capabilities import Capabilities
from harness.inventory import Machine, ssh_host
from harness.origins import Origin
from harness.plan import Host, Plan
from harness.providers import Drop
from harness.render import RenderedFile, Tree
from harness.rundir import RunDir
from harness.scenario import Scenario

SCENARIO = Path(__file__).parents[2] / "scenarios" / "single-node.yml"


class FakeProvider:
    """A provider whose hosts do not answer; it raises `error` at `where`; at "boot", hosts stop."""

    name = "fake"
    capabilities = Capabilities(cgroups=False, own_hardware=False)

    def __init__(self, where: str = "", error: BaseException | None = None) -> None:
        self.running: dict[str, list[str]] = {}
        self.dropped: dict[str, list[Drop]] = {}
        self._where, self._error = where, error

    def _maybe(self, where: str) -> None:
        if self._error and self._where == where:
            raise self._error

    def works_again(self) -> None:
        self._error = None

    def origin_of_image(self, image: str) -> Origin:
        return Origin("", "24.11", "24.11.5")

    def lacks(self, scenario: Scenario) -> tuple[()]:
        return ()

    def confirm(self, plan: Plan, tree: Tree, run: RunDir | None = None) -> None:
        self._maybe("ask")

    def ssh_config(self, run: RunDir, machines: Sequence[Machine]) -> str:
        return "BatchMode yes\n" + "".join(map(ssh_host, machines))

    def prepare(self, plan: Plan, say: Callable[[str], None]) -> None:
        self._maybe("prepare")

    def up(self, run: RunDir, plan: Plan, hosts: Sequence[Host]) -> list[Machine]:
        self.running[run.id] = [host.name for host in hosts if self._where != "boot"]
        self._maybe("up")
        return [Machine(host.name, "127.0.0.1", 1) for host in hosts]

    def make(
        self,
        run: RunDir,
        plan: Plan,
        hosts: Sequence[Host],
        files: Mapping[str, Sequence[RenderedFile]],
    ) -> None:
        self._maybe("make")

    def start(self, run_id: str, host: str) -> Machine:
        self._maybe("start")
        self.running.setdefault(run_id, []).append(host)
        return Machine(host, "127.0.0.1", 1)

    def stop(self, run_id: str, host: str) -> None:
        self._maybe("stop")
        self.running[run_id].remove(host)

    def kill(self, run_id: str, host: str) -> None:
        self._maybe("kill")
        self.running[run_id].remove(host)

    def pause(self, run_id: str, host: str) -> None:
        self._maybe("pause")

    def unpause(self, run_id: str, host: str) -> None:
        self._maybe("unpause")

    def drop(self, run_id: str, host: str, drops: Sequence[Drop]) -> None:
        self._maybe("drop")
        self.dropped[host] = list(drops)

    def fetch(self, run_id: str, host: str, directory: str, tar: Path) -> None:
        self._maybe("fetch")
        tar.touch()

    def put(self, run_id: str, host: str, directory: str, tar: Path) -> None:
        self._maybe("put")

    def remove(self, run_id: str, host: str) -> None:
        self._maybe("remove")
        self.running[run_id].remove(host)

    def hosts(self, run_id: str) -> dict[str, bool]:
        return dict.fromkeys(self.running.get(run_id, []), True)

    def console(self, run_id: str, host: str) -> str:
        return "the console's last words"

    def runs(self, *, all_users: bool = False) -> dict[str, list[str]]:
        return dict(self.running)

    def down(self, run_id: str) -> list[str]:
        self.running.pop(run_id, None)
        return []


def packed(path: Path, files: dict[str, str], *links: tuple[str, str]) -> Path:
    """Write a bundle with these files and symbolic links."""
    with tarfile.open(path, "w:gz") as tar:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text.encode())
            tar.addfile(entry, io.BytesIO(text.encode()))
        for name, target in links:
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            tar.addfile(entry)
    return path
