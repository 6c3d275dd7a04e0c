"""Nodes shared with Kubernetes: the ledger, the operator that applies it to Slurm, and its API."""
