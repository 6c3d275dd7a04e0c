"""Run SchedMD's own test suite on a run, and compare its results with the expected ones."""
