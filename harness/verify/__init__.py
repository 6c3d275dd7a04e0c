"""Run the checks with pytest: choose those that fit a scenario, and trace what jobs did."""
