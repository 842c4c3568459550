"""A binary tree of sums: draws leaves in proportion to their values, many at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class SumTree:
    """Non-negative values in `capacity` leaves, and the sum of every subtree.

    Inner nodes are computed anew from their children, so rounding errors never add up.

    >>> tree = SumTree(8)
    >>> tree.put(np.array([1, 5]), np.array([1.0, 3.0]))
    >>> tree.find(np.array([0.5, 2.0]))
    array([1, 5])
    """

    def __init__(self, capacity: int) -> None:
        self._first = 1 << max(0, capacity - 1).bit_length()
        self._nodes = np.zeros(2 * self._first)

    @property
    def total(self) -> float:
        """The sum of all leaves."""
        return float(self._nodes[1])

    def get(self, leaves: NDArray[np.int64]) -> NDArray[np.float64]:
        """The values of some leaves."""
        return self._nodes[leaves + self._first]

    def put(self, leaves: NDArray[np.int64], values: NDArray[np.floating]) -> None:
        """Sets some leaves; of a leaf named twice the last value stays."""
        nodes = leaves + self._first
        self._nodes[nodes] = values
        while nodes.size and nodes[0] > 1:  # all are on one level
            nodes = nodes >> 1
            self._nodes[nodes] = self._nodes[2 * nodes] + self._nodes[2 * nodes + 1]

    def find(self, sums: NDArray[np.float64]) -> NDArray[np.int64]:
        """For each number from 0 to `total` the leaf where the running sum first exceeds it."""
        nodes = np.ones(sums.shape, np.int64)
        left_over = sums.copy()
        while nodes.size and nodes[0] < self._first:
            nodes *= 2
            left = self._nodes[nodes]
            # A right side of 0 is never entered: rounding may leave a rest that no leaf covers.
            right = (left_over >= left) & (self._nodes[nodes + 1] > 0.0)
            left_over -= np.where(right, left, 0.0)
            nodes += right
        return nodes - self._first
