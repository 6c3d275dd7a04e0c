"""Group users whose associations one command of sacctmgr can create or change. Pure.

On a site with hundreds of users, a command for each would take most of the deployment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from harness.scenario import User
from harness.slurm_options import early, late


@dataclass(frozen=True, slots=True)
class AssociationGroup:
    """Associations of several users with an account, and the options that they have in common.

    `partition` is "" for associations that apply in all partitions.
    """

    account: str
    partition: str
    default_account: str
    options: Mapping[str, str]
    users: list[str] = field(default_factory=list)


def created(users: Mapping[str, User]) -> list[AssociationGroup]:
    """Return all associations, each user's in the user's order, which the default account begins.

    They have options where commands cannot change them later without changing those of other
    partitions.
    """
    groups: dict[object, AssociationGroup] = {}
    numbers: dict[object, int] = {}
    for name, user in users.items():
        for number, ((account, partition), options) in enumerate(
            user.accounts_of_associations().items()
        ):
            own = early(options) if user.has_partitions else {}
            key = (number, account, partition, user.default_account, *own.items())
            group = AssociationGroup(account, partition, user.default_account or "", own)
            groups.setdefault(key, group).users.append(name)
            numbers[key] = number
    return [groups[key] for key in sorted(groups, key=lambda key: numbers[key])]


def changed(users: Mapping[str, User], *, is_late: bool) -> list[AssociationGroup]:
    """Return associations that get options after they were created.

    `is_late`: those whose TRES slurmdbd knows only after a slurmctld has registered them.
    """
    groups: dict[object, AssociationGroup] = {}
    for name, user in users.items():
        if user.has_partitions and not is_late:
            continue
        for association, options in user.associations.items():
            account, _, partition = association.partition(":")
            if own := late(options) if is_late else early(options):
                key = (account, partition, *own.items())
                group = AssociationGroup(account, partition, "", own)
                groups.setdefault(key, group).users.append(name)
    return [*groups.values()]


def with_qos(users: Mapping[str, User]) -> dict[tuple[str, ...], list[str]]:
    """Return the users who may request the same QOS, by these QOS."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, user in users.items():
        if user.accounts and user.qos:
            groups.setdefault(tuple(user.qos), []).append(name)
    return groups
