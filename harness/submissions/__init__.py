"""Ask Slurm what becomes of a table of submissions, and compare two answers."""
