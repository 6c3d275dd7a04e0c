"""Simulated users who submit jobs during faults or an upgrade, and what must hold afterwards."""
