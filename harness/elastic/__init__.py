"""Elastic nodes: the provisioning API, the process that serves it, and diagnosis."""
