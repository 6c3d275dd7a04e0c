"""Readers of untrusted text with limits: slurm.conf, hostlists, durations, YAML and JSON."""
