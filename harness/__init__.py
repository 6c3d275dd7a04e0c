"""Build, deploy and verify real Slurm clusters from one scenario file."""

__version__ = "0.1.0"
