"""Faults of slurmdbd's database."""

from harness.faults.model import Kind

# Shell functions for scripts that end at the first failure (set -e), which does not see a failure
# in `A && B`. Until slurmdbd listens, it ends if it loses its database. A backup listens only
# after it has taken over.
SLURMDBD = """
    of() { sed -n "s/^$1=//p" /etc/slurm/slurmdbd.conf; }
    wait_for_slurmdbd() {
        port=$(of DbdPort)
        while systemctl is-active --quiet slurmdbd; do
            if [ "$(of DbdBackupHost)" = "$(uname -n)" ] ||
                ss -Hltn "sport = :${port:-6819}" | grep --quiet .; then return; fi
            sleep 0.05
        done
        return 1
    }
    restart() { systemctl reset-failed slurmdbd 2> /dev/null || true; systemctl restart slurmdbd; }
    password() {
        for from in $(mariadb --skip-column-names \\
            -e "SELECT host FROM mysql.user WHERE user = '$(of StorageUser)'"); do
            mariadb -e "ALTER USER '$(of StorageUser)'@'$from' IDENTIFIED BY '$1'"
        done
    }
"""
# systemctl does not wait until slurmdbd listens.
WAIT_FOR_SLURMDBD = f"{SLURMDBD} wait_for_slurmdbd"
_LOSE = f"""{SLURMDBD}
    umask 077; mariadb-dump --single-transaction --databases "$(of StorageLoc)" > "$aside/dump.new"
    mv "$aside/dump.new" "$aside/dump.sql"
    systemctl stop slurmdbd; mariadb -e "DROP DATABASE \\`$(of StorageLoc)\\`"; restart"""
_LOAD = f"""{SLURMDBD}
    [ -e "$aside/dump.sql" ] || exit 0
    systemctl stop slurmdbd; mariadb -e "DROP DATABASE IF EXISTS \\`$(of StorageLoc)\\`"
    mariadb < "$aside/dump.sql"; restart; wait_for_slurmdbd"""

KINDS = {
    "change-database-password": Kind(
        "the database no longer accepts slurmdbd's password",
        f"{SLURMDBD} password not-this-one; restart || true",
        f'{SLURMDBD} password "$(of StoragePass)"; restart; wait_for_slurmdbd',
    ),
    "lose-database": Kind("the database is dropped; healing restores it from a dump", _LOSE, _LOAD),
}
