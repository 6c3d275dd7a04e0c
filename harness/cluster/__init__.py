"""A running cluster: query Slurm, read its records and logs, and explain what is wrong."""
