"""Faults of clocks."""

from harness import origins
from harness.faults.model import SECONDS, Kind

_LIBRARY = " ".join(
    f"{directory}/faketime/libfaketimeMT.so.1" for directory in origins.library_directories()
)
_UNITS = """for unit in munge slurmdbd slurmctld slurmd; do
        file=/run/systemd/system/$unit.service.d/fault.conf"""
_STEP = f"""
    library=$(ls -d {_LIBRARY} 2> /dev/null | grep -m 1 .) ||
        {{ echo "this host has no libfaketime" >&2; exit 3; }}
    {_UNITS}
        systemctl is-active --quiet $unit || continue
        mkdir -p "${{file%/*}}"
        printf '[Service]\\nEnvironment=LD_PRELOAD=%s FAKETIME=%+ds %s\\n' \\
            "$library" "$1" FAKETIME_DONT_FAKE_MONOTONIC=1 > "$file"
        systemctl daemon-reload
        systemctl restart $unit
    done
"""
_STEP_BACK = f"""{_UNITS}
        [ -e "$file" ] || continue
        rm "$file"; systemctl daemon-reload; systemctl restart $unit
    done"""

KINDS = {
    "step-clock": Kind(
        "the daemons of a host have a clock that is off by SECONDS", _STEP, _STEP_BACK, SECONDS
    ),
}
