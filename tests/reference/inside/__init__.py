"""Runs inside a reference container: a genuine slurmctld or slurmdbd reads a configuration.

Nothing but the configuration can fail: whatever it names outside of itself is there. Python 3.9,
standard library only.
"""
