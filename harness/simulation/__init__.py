"""Simulate scheduling policies: a job trace on real daemons whose clock runs fast."""
