"""Simulate scheduling policies: a workload trace on real daemons with an accelerated clock."""
