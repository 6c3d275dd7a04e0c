"""Existing machines, which are restored after a run."""
