"""Faults of slurmdbd's database."""

from harness.faults.model import Kind

_SLURMDBD_CONF = """
    of() { sed -n "s/^$1=//p" /etc/slurm/slurmdbd.conf; }
    restart() { systemctl reset-failed slurmdbd 2> /dev/null || true; systemctl restart slurmdbd; }
    password() {
        for from in $(mariadb --skip-column-names \\
            -e "SELECT host FROM mysql.user WHERE user = '$(of StorageUser)'"); do
            mariadb -e "ALTER USER '$(of StorageUser)'@'$from' IDENTIFIED BY '$1'"
        done
    }
"""
_LOSE = f"""{_SLURMDBD_CONF}
    umask 077; mariadb-dump --single-transaction --databases "$(of StorageLoc)" > "$aside/dump.new"
    mv "$aside/dump.new" "$aside/dump.sql"
    systemctl stop slurmdbd && mariadb -e "DROP DATABASE \\`$(of StorageLoc)\\`"; restart"""
_LOAD = f"""{_SLURMDBD_CONF}
    [ -e "$aside/dump.sql" ] || exit 0
    systemctl stop slurmdbd; mariadb -e "DROP DATABASE IF EXISTS \\`$(of StorageLoc)\\`"
    mariadb < "$aside/dump.sql" && restart"""

KINDS = {
    "change-database-password": Kind(
        "the database no longer accepts slurmdbd's password",
        f"{_SLURMDBD_CONF} password not-this-one; restart || true",
        f'{_SLURMDBD_CONF} password "$(of StoragePass)" && restart',
    ),
    "lose-database": Kind("the database is dropped; healing restores it from a dump", _LOSE, _LOAD),
}
