"""Hosts as virtual machines."""
