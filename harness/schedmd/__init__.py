"""Run SchedMD's own testsuite on a run, and compare its results with a list of expected ones."""
