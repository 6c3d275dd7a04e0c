"""Put a host's whole set of files in place, with a program that needs no more there than Python's own library.

A module would bring Ansible's library along, which Python compiles anew for each task on each host.
"""

import json
import shlex
from pathlib import Path

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

PROGRAM = Path(__file__).parents[1] / "files" / "install_files.py"


class ActionModule(ActionBase):
    """`payload` is a JSON file of the host's files here; `run` are the units that run when they are in place.

    Returns the paths of what changed, and as `unit_actions` what systemctl must do with the units in `later`: because
    they do not run, or because their files changed.
    """

    def run(self, tmp=None, task_vars=None):
        """Run the program on the host."""
        super().run(tmp, task_vars)
        arguments = self._task.args
        units = [json.dumps(arguments[which]) for which in ("run", "later")]
        command = [task_vars["ansible_python_interpreter"], "-c", PROGRAM.read_text(), *units]
        payload = Path(arguments["payload"]).read_bytes()
        said = self._low_level_execute_command(shlex.join(command), in_data=payload)
        if said["rc"]:
            raise AnsibleActionFail("the files are not in place", result={"stderr": said["stderr"]})
        return json.loads(said["stdout"])
