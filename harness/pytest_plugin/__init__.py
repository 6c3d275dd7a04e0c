"""The pytest plugin for users' own tests: fixtures, their run, and the output of failed tests."""
