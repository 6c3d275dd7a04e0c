"""Slurm configuration files: check them for a release, compare them with each other or daemons."""
