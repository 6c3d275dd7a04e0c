"""Sabotages of dns.yml: of hosts' own files, of a DNS server, and of jobs during its outage."""

from __future__ import annotations

from sabotage_hosts import on_host

NAMES, OUTAGE = "names_come_from_the_dns_server", "outlive_an_outage_of_dns"


def changed(path: str, change: str) -> tuple[str, str]:
    """Return scripts that change a file which Docker has mounted, and restore it."""
    return (
        f"cp {path} /root/right; sed '{change}' /root/right > {path}",
        f"cat /root/right > {path}",
    )


DNS = [
    on_host(
        NAMES,
        "onprem1",
        *changed("/etc/hosts", "$ a 192.0.2.1 onprem2"),
        "onprem1 has onprem2 in /etc/hosts",
    ),
    on_host(
        NAMES,
        "onprem2",
        *changed("/etc/resolv.conf", "$ a nameserver 192.0.2.1"),
        "onprem2 asks the name server 192.0.2.1, not accounting",
    ),
    on_host(
        NAMES,
        "cloud",
        *(
            f"{script}; systemctl restart dnsmasq"
            for script in changed("/etc/hosts", "s/onprem2$/onprem3/")
        ),
        "cloud does not resolve onprem2",
    ),
    on_host(
        OUTAGE,
        "onprem",
        "systemd-run --quiet --unit=health --remain-after-exit bash -c"
        " 'while getent hosts onprem1; do sleep 0.1; done; scancel --user=alice --state=RUNNING'",
        "systemctl stop health",
        "CANCELLED",
    ),
]
