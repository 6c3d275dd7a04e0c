from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.kubernetes import amounts
from harness.kubernetes.amounts import Amount, Use


@pytest.mark.parametrize(
    ("quantities", "amount"),
    [
        ({"cpu": "1735m", "memory": "2393Mi"}, Amount(1735, 2393)),
        ({"cpu": 2, "memory": "1G"}, Amount(2000, 954)),
        ({"cpu": "0.1001"}, Amount(101, 0)),
        ({"cpu": "1500001u"}, Amount(1501, 0)),
        ({"cpu": "250000000n"}, Amount(250, 0)),
        ({"memory": "128974848"}, Amount(0, 123)),
        ({"memory": "1e9"}, Amount(0, 954)),
        ({}, Amount()),
        ({"gpu.intel.com/i915": 1, "nvidia.com/gpu": "2"}, Amount(0, 0, 3)),
        ({"nvidia.com/mig-1g.5gb": 0}, Amount()),
    ],
)
def test_quantities_of_kubernetes_are_rounded_up(
    quantities: dict[str, str], amount: Amount
) -> None:
    assert amounts.of_pod(quantities) == amount


@pytest.mark.parametrize("wrong", ["", "-1", "many", "1mi", "1 Gi", "1ni", "1mm", "NaN", "0x10"])
def test_invalid_quantity_is_reported(wrong: str) -> None:
    with pytest.raises(ValueError, match="is not a quantity"):
        amounts.of_pod({"cpu": wrong})


@pytest.mark.parametrize("name", ["nvidia.com/mig-1g.5gb", "nvidia.com/gpu.shared"])
def test_part_of_a_gpu_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}: Slurm and Kubernetes share only whole GPUs"):
        amounts.of_pod({name: 1})


AMOUNTS = st.builds(Amount, st.integers(0, 9000), st.integers(0, 9000))


@given(st.lists(AMOUNTS), AMOUNTS)
def test_pods_and_slurms_share_together_never_exceed_the_node(
    pods: list[Amount], whole: Amount
) -> None:
    left = amounts.left_to_slurm(whole, pods)
    assert left.millicpus % 1000 == 0
    if amounts.total(pods).fits_in(whole):
        assert (left + amounts.total(pods)).fits_in(whole)


def test_overallocated_node_is_found_where_it_begins() -> None:
    whole = {"n1": Amount(2000, 500), "n2": Amount(2000, 500)}
    uses = [
        Use("job 1", "n1", Amount(1000, 100), 0, 10),
        Use("pod a", "n1", Amount(1000, 100), 5, 15),
        Use("job 2", "n1", Amount(1000, 100), 10, 20),
        Use("pod b", "n2", Amount(2000, 500), 0, 20),
    ]
    assert amounts.overcommitted(uses, whole) == []
    (problem,) = amounts.overcommitted([*uses, Use("pod c", "n1", Amount(1, 1), 12, 13)], whole)
    assert problem.startswith("n1 has {'cpu': '2000m', 'memory': '500Mi'}, at 12.00 taken by pod a")
    (problem,) = amounts.overcommitted([*uses, Use("pod d", "n2", Amount(0, 1), 19, 20)], whole)
    assert problem.startswith("n2 has")
