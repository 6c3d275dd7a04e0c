"""Sabotages of directory.yml: of slapd, of sssd, and of a host's own users."""

from __future__ import annotations

from sabotage_hosts import on_host

USERS, AWAY = "come_from_the_directory_only", "run_while_the_directory_is_down"
UNIT = "/etc/systemd/system/slapd.service"
RESTART_SLAPD = (
    "systemctl daemon-reload; systemctl restart slapd;"
    " until ss -Hltn sport = :636 | grep -q .; do sleep 0.1; done"
)
LDIF = "/etc/ldap/users.ldif"
# sssd forgets all users, and starts again.
FORGET = "systemctl stop sssd; rm -f /var/lib/sss/db/* /var/lib/sss/mc/*"

DIRECTORY = [
    on_host(
        USERS,
        "n1",
        "cp -p /etc/passwd /root/right;"
        " echo alice:x:2001:2001::/home/alice:/bin/bash >> /etc/passwd",
        "cp -p /root/right /etc/passwd",
        "n1: id of passwd alice in the host's own files: 2001, should be none",
    ),
    on_host(
        USERS,
        "ldap",
        f"cp -p {LDIF} /root/right; sed -i 's/^gidNumber: 3001/gidNumber: 3002/' {LDIF};"
        f" systemctl restart slapd; {FORGET}; systemctl start sssd",
        f"cp -p /root/right {LDIF}; systemctl restart slapd; {FORGET}; systemctl start sssd",
        "ldap: id of group chemists in sssd: 3002, should be 3001",
    ),
    on_host(
        USERS,
        "n2",
        FORGET,
        "systemctl start sssd",
        "n2: id of passwd alice in sssd: none, should be 2001",
    ),
    on_host(
        "over_tls_only",
        "ldap",
        f"sed -i s,ldaps://ldap:636/,ldap://ldap:636/, {UNIT}; {RESTART_SLAPD}",
        f"sed -i s,ldap://ldap:636/,ldaps://ldap:636/, {UNIT}; {RESTART_SLAPD}",
        "n1 cannot ask ldap over TLS: ",
    ),
    on_host(
        "over_tls_only",
        "ldap",
        f"sed -i 's,ldaps://ldap:636/,\"& ldap://ldap:389/\",' {UNIT}; {RESTART_SLAPD}",
        f"sed -i 's,\"\\(ldaps://ldap:636/\\) ldap://ldap:389/\",\\1,' {UNIT}; {RESTART_SLAPD}",
        ":389, without TLS",
    ),
    on_host(
        AWAY,
        "n1",
        # A host that asks sssd no longer as soon as the directory is away.
        "cp -p /etc/nsswitch.conf /root/right; sed s/sss// /root/right > /etc/nsswitch.conf.new;"
        " systemd-run --quiet --unit=forget bash -c"
        " 'while : < /dev/tcp/ldap/636; do read -t 0.02 <> <(:); done;"
        " mv /etc/nsswitch.conf.new /etc/nsswitch.conf'",
        "systemctl stop forget; cp -p /root/right /etc/nsswitch.conf",
        "n1: no user alice any more, since slapd stopped",
    ),
]
