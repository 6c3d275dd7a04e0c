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
