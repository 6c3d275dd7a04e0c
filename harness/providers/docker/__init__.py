"""Hosts as Docker containers."""
