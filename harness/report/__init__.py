"""The verdict of a run: report.json, the timeline, and report.html."""
