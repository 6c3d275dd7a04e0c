"""Faults: break a run on purpose, and make sure that it is healed.

A new fault is an entry in the KINDS of its family (daemons.py, hosts.py, network.py, ...).
"""

from harness.faults.failed_daemons import failed_daemons
from harness.faults.injection import heal, heal_all, inject, injected
from harness.faults.kill_between_saves import inject_between_saves
from harness.faults.model import Fault, Kind
from harness.faults.notes import active, affected, half_injected, noted, noted_in
from harness.faults.registry import KINDS, parse

__all__ = [
    "KINDS",
    "Fault",
    "Kind",
    "active",
    "affected",
    "failed_daemons",
    "half_injected",
    "heal",
    "heal_all",
    "inject",
    "inject_between_saves",
    "injected",
    "noted",
    "noted_in",
    "parse",
]
