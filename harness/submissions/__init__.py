"""Ask Slurm how it treats a table of submissions, and compare the answers."""
