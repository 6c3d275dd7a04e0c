"""Build, deploy and verify genuine Slurm clusters from one scenario file."""

__version__ = "0.1.0"
