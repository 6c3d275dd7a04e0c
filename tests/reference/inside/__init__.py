"""Runs inside a reference container: a real slurmctld, slurmd or slurmdbd reads a configuration.

Only the configuration can fail: everything outside of it that it names exists. Python 3.9,
standard library only.
"""
