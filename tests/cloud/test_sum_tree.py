from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cloud_learner.training.sum_tree import SumTree


@given(
    st.integers(1, 40),
    st.lists(st.tuples(st.integers(0, 39), st.floats(0.0, 100.0)), max_size=60),
    st.floats(0.0, 1.0, exclude_max=True),
)
def test_finds_the_leaf_that_a_plain_running_sum_finds(
    capacity: int, puts: list[tuple[int, float]], at: float
) -> None:
    tree, plain = SumTree(capacity), np.zeros(capacity)
    for leaf, value in puts:
        tree.put(np.array([leaf % capacity]), np.array([value]))
        plain[leaf % capacity] = value
    np.testing.assert_array_equal(tree.get(np.arange(capacity)), plain)
    np.testing.assert_allclose(tree.total, plain.sum(), rtol=1e-12)
    if tree.total > 0.0:
        wanted = at * tree.total
        (found,) = tree.find(np.array([wanted]))
        sums = np.cumsum(plain)
        slack = 1e-9 * max(1.0, tree.total)
        assert plain[found] > 0.0
        assert sums[found] + slack >= wanted >= sums[found] - plain[found] - slack


def test_a_leaf_of_nothing_is_never_found() -> None:
    tree = SumTree(8)
    tree.put(np.array([2, 5]), np.array([1e-12, 3.0]))
    found = tree.find(np.linspace(0.0, tree.total, 1001))
    assert set(found.tolist()) <= {2, 5}


def test_of_a_leaf_named_twice_the_last_value_stays() -> None:
    tree = SumTree(4)
    tree.put(np.array([1, 1, 3]), np.array([5.0, 2.0, 1.0]))
    assert tree.total == 3.0


def test_draws_leaves_in_proportion_to_their_values() -> None:
    tree = SumTree(3)
    tree.put(np.arange(3), np.array([1.0, 2.0, 5.0]))
    found = tree.find(np.random.default_rng(0).random(80_000) * tree.total)
    np.testing.assert_allclose(np.bincount(found) / 80_000, [0.125, 0.25, 0.625], atol=0.01)
