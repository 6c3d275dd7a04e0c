"""The programs that shell scripts call."""

from __future__ import annotations

import time

import pytest

from harness.site.shell_calls import calls, functions

SCRIPT = r"""#!/bin/bash
# comment about nvidia-foo
. /etc/slurm/lib.sh
FOO=1 BAR="a b" assigned --x
check() { lctl ping x; }
function other { mmlsfs all; }
check; other
if ! nvidia-smi -L > /dev/null 2>&1; then echo "no gpu # here" | mailx -s hi root; fi
x=$(scontrol show job "$SLURM_JOB_ID" | awk '{print $1; system("evil")}')
y="text $(/usr/local/sbin/nhc -q) more"
case "$1" in
  start|begin) beegfs-ctl --x ;;
  stop) ipmitool chassis; umount /x;;
  *) exit 3 ;;
esac
for u in alice bob; do pkill -u $u || true; done
while read -r line; do dcgmi $line; done < /etc/hosts
names=(one two three)
[[ -f /x && $y == foo ]] && /opt/bin/thing || exit 1
(( i + foo )); z=$((foo * bar))
cat <<END
not-a-command here
END
"$VAR" something
echo 'several
lines' ; after
> /tmp/x
`backticks now`
exec 2>&1
"""


def test_commands_are_found_with_the_line_of_their_first_call() -> None:
    assert calls(SCRIPT) == {
        "/etc/slurm/lib.sh": 3,
        "assigned": 4,
        "lctl": 5,
        "mmlsfs": 6,
        "nvidia-smi": 8,
        "mailx": 8,
        "scontrol": 9,
        "awk": 9,
        "/usr/local/sbin/nhc": 10,
        "beegfs-ctl": 12,
        "ipmitool": 13,
        "umount": 13,
        "pkill": 16,
        "dcgmi": 17,
        "/opt/bin/thing": 19,
        "cat": 21,
        "after": 26,
        "backticks": 28,
    }
    assert functions(SCRIPT) == {"check", "other"}


@pytest.mark.parametrize(
    "part",
    [
        '"',
        "'",
        "[[ a ",
        "a=(",
        "$((1 ",
        "<<A\n",
        "${",
        '"\\',
        "f ( ",
        " ",
        "\n",
        "a",
        "`",
        "$(",
        "\0",
    ],
)
def test_hostile_text_takes_linear_time(part: str) -> None:
    before = time.process_time()
    calls(part * (2**18 // len(part)))
    assert time.process_time() - before < 30
