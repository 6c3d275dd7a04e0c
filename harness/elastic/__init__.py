"""Elastic nodes: the provisioning API, and its process beside a run."""
