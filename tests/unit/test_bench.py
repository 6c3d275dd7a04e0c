from __future__ import annotations

import re
from xml.etree import ElementTree

from harness import bench


def test_plot_has_a_panel_for_each_quantity_from_zero_to_its_maximum() -> None:
    rows = [
        {"nodes": 50, "registered": 2.5, "slurmd": 3.0, "slurmctld": 20.0},
        {"nodes": 100, "registered": 5.0, "slurmd": 3.0, "slurmctld": 40.0},
    ]
    picture = bench.plot({"rows": rows})
    assert ElementTree.fromstring(picture).tag.endswith("svg")  # noqa: S314  made just now
    assert re.findall(r'<polyline points="([^"]*)', picture) == [
        "100,60 200,0 ",
        "100,0 200,0 ",
        "100,60 200,0 ",
    ]
    assert "50 nodes: 2.5" in picture


def test_plot_of_simulations_has_a_panel_for_each_number_of_jobs() -> None:
    rows = [
        {"nodes": 100, "jobs_a_day": 1000, "rate": 80.0},
        {"nodes": 100, "jobs_a_day": 5000, "rate": 40.0},
        {"nodes": 200, "jobs_a_day": 1000, "rate": 60.0},
        {"nodes": 200, "jobs_a_day": 5000, "rate": 20.0},
    ]
    picture = bench.plot_simulations({"rows": rows})
    assert re.findall(r"font-size=\"12\">([^<]*)", picture) == [
        "simulated h per h, 1000 jobs a day",
        "simulated h per h, 5000 jobs a day",
    ]
    assert re.findall(r'<polyline points="([^"]*)', picture) == ["100,0 200,30 ", "100,0 200,60 "]
