"""Faults of disks."""

from harness.faults.model import DIRECTORY, USER, Kind

_FILL = """
    free=$(df --output=avail --block-size=1 "$1" | tail -1)
    [ "$free" -lt 4000000000 ] ||
        { echo "the disk of $1 is too large to fill: $free bytes are free" >&2; exit 3; }
    fallocate --length "$free" "$1/.slurm-harness-fault" 2> /dev/null || true
    # Daemons may take space in the meantime, or free some because they replace a file.
    full=0
    until [ "$full" -eq 2 ]; do
        cat /dev/zero 2> /dev/null >> "$1/.slurm-harness-fault" || true
        sleep 0.2
        free=$(df --output=avail --block-size=1 "$1" | tail -1)
        if [ "$free" -eq 0 ]; then full=$((full + 1)); else full=0; fi
    done
"""

# The file system with the home of user $1.
_WHERE = """
    where=$(df --output=target "$(getent passwd "$1" | cut -d : -f 6)" | tail -1)
"""
# A hard limit of no blocks would mean no limit; setquota(8).
_EXHAUST = f"""{_WHERE}
    if ! {{ command -v repquota && repquota --user "$where"; }} > /dev/null 2>&1; then
        echo "$where, which has the home of $1, has no quotas of users on this host" >&2
        exit 3
    fi
    repquota --user --no-names --output=csv "$where" | grep "^#$(id --user "$1")," > "$aside/quota"
    IFS=, read -r _ _ _ used _ _ _ _ soft_files hard_files _ < "$aside/quota"
    setquota --user "$1" 0 $((used > 0 ? used : 1)) "$soft_files" "$hard_files" "$where"
    # quotaon -p also says "on" if usage is counted, but not limited.
    if answer=$(quotaon --user "$where" 2>&1); then
        : > "$aside/was-off"
    else
        case "$answer" in *"File exists"* | *busy*) ;; *) echo "$answer" >&2; exit 1 ;; esac
    fi
"""
_RESTORE = f"""{_WHERE}
    if [ -s "$aside/quota" ]; then
        IFS=, read -r _ _ _ _ soft hard _ _ soft_files hard_files _ < "$aside/quota"
        setquota --user "$1" "$soft" "$hard" "$soft_files" "$hard_files" "$where"
        [ ! -e "$aside/was-off" ] || quotaoff --user "$where"
    fi
"""

KINDS = {
    "fill-disk": Kind(
        "the file system of a directory is full",
        _FILL,
        'rm -f "$1/.slurm-harness-fault"',
        DIRECTORY,
    ),
    "exhaust-quota": Kind(
        "a user has used up the quota of the file system with the user's home",
        _EXHAUST,
        _RESTORE,
        USER,
    ),
}
