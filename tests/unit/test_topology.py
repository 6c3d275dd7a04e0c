from __future__ import annotations

import pytest

from harness import topology
from harness.scenario import Topology
from harness.topology import Box, Placed

TREE = Topology.model_validate(
    {
        "switches": {
            "top": {"switches": "low,s3"},
            "low": {"switches": "s[1-2]"},
            "s1": {"nodes": "n[1-2]"},
            "s2": {"nodes": "n[3-4]"},
            "s3": {"nodes": "n[5-6]"},
        }
    }
)
BLOCKS = Topology.model_validate(
    {
        "blocks": {f"b{number}": f"n[{2 * number}-{2 * number + 1}]" for number in range(5)},
        "block_sizes": [2, 4],
    }
)
TORUS = Topology.model_validate(
    {
        "toruses": {
            "pod": {
                "dims": [4, 2, 1],
                "nodes": "n[0-7]",
                "placements": [[3, 1, 1], [2, 2, 1], [1, 2, 1]],
            }
        }
    }
)


def shape(described: Topology) -> list[dict[str, str]]:
    return [
        {unit.name: " ".join(unit.nodes) for unit in level} for level in topology.levels(described)
    ]


def test_levels_of_a_tree_are_its_leaves_and_what_is_above_them() -> None:
    assert shape(TREE) == [
        {"s1": "n1 n2", "s2": "n3 n4", "s3": "n5 n6"},
        {"low": "n1 n2 n3 n4"},
        {"top": "n1 n2 n3 n4 n5 n6"},
    ]


def test_levels_of_blocks_are_their_sizes_and_only_whole_ones() -> None:
    assert shape(BLOCKS) == [
        {"b0": "n0 n1", "b1": "n2 n3", "b2": "n4 n5", "b3": "n6 n7", "b4": "n8 n9"},
        {"b[0-1]": "n0 n1 n2 n3", "b[2-3]": "n4 n5 n6 n7"},
    ]


def test_blocks_without_sizes_are_joined_as_in_slurm() -> None:
    plain = Topology(blocks=BLOCKS.blocks)
    assert [len(level[0].nodes) for level in topology.levels(plain)] == [2, 4, 8]


def test_sub_cubes_begin_where_others_end_and_wrap_around_the_torus() -> None:
    two, three, four = shape(TORUS)
    assert two == {f"pod from {x}:0:0": f"n{x} n{x + 4}" for x in range(4)}
    assert three["pod from 3:1:0"] == "n7 n4 n5"
    assert len(three) == 8
    assert four == {"pod from 0:0:0": "n0 n4 n1 n5", "pod from 2:0:0": "n2 n6 n3 n7"}


@pytest.mark.parametrize(
    ("described", "node", "address"),
    [
        (TREE, "n3", "top.low.s2.n3"),
        (TREE, "n5", "top.s3.n5"),
        (BLOCKS, "n4", "b2.n4"),
        (TORUS, "n6", "pod:2:1:0.n6"),
    ],
)
def test_node_is_reachable_at_its_address(described: Topology, node: str, address: str) -> None:
    assert topology.address(described, node) == address


def placed(described: Topology, *, near_switches: bool = True) -> Placed:
    nodes = {node for unit in topology.levels(described)[0] for node in unit.nodes}
    return Placed("t", described, "p", frozenset(nodes), near_switches)


def test_job_has_a_choice_where_a_level_has_several_units() -> None:
    assert [len(level) for level in placed(TREE).choices()] == [3]
    assert [len(level) for level in placed(BLOCKS).choices()] == [5, 2]
    assert [len(level) for level in placed(TORUS).choices()] == [4, 8, 2]
    assert [unit.name for unit in placed(TREE).leaves()] == ["s1", "s2", "s3"]


def test_release_without_near_switches_chooses_leaves_only() -> None:
    wide = Topology.model_validate(
        {
            "switches": {
                "top": {"switches": "m[1-2]"},
                **{f"m{number}": {"switches": f"s{number},z{number}"} for number in (1, 2)},
                **{
                    f"{name}{number}": {"nodes": f"{name}{number}n[1-2]"}
                    for number in (1, 2)
                    for name in "sz"
                },
            }
        }
    )
    assert [len(level) for level in placed(wide).choices()] == [4, 2]
    assert [len(level) for level in placed(wide, near_switches=False).choices()] == [4]


def test_segments_are_units_that_form_no_larger_one() -> None:
    assert [unit.name for unit in placed(BLOCKS).segments()] == ["b0", "b2"]
    assert [unit.name for unit in placed(TORUS).segments()] == ["pod from 0:0:0", "pod from 2:0:0"]
    assert placed(TREE).segments() == ()


@pytest.mark.parametrize(
    ("described", "nodes"),
    [(TREE, 6), (BLOCKS, 8), (BLOCKS.model_copy(update={"block_sizes": (2, 16)}), 10), (TORUS, 4)],
)
def test_job_has_at_most_what_the_topology_can_join(described: Topology, nodes: int) -> None:
    assert placed(described).most_nodes() == nodes


def test_parts_are_those_that_slurm_names() -> None:
    assert [*topology.parts(TREE)] == ["s1", "s2", "s3", "low", "top"]
    assert [*topology.parts(BLOCKS)] == ["b0", "b1", "b2", "b3", "b4"]
    assert topology.parts(TORUS)["pod"] == tuple(f"n{number}" for number in range(8))


def test_picture_has_every_node_once_where_it_belongs() -> None:
    assert topology.picture(TREE) == [
        Box(
            "top",
            (
                Box("low", (Box("s1", rows=(("n[1-2]",),)), Box("s2", rows=(("n[3-4]",),)))),
                Box("s3", rows=(("n[5-6]",),)),
            ),
        )
    ]
    assert [box.name for box in topology.picture(BLOCKS)] == ["b[0-1]", "b[2-3]", "b4"]
    assert topology.picture(TORUS) == [
        Box("pod", (Box("z 0", rows=(("n0", "n1", "n2", "n3"), ("n4", "n5", "n6", "n7"))),))
    ]
