"""Sets of sequence numbers as a few intervals."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from shoal.errors import LimitExceeded, WireError
from shoal.v1 import tensor_pb2 as pb

MAX_SPANS = 4096


@dataclass(frozen=True, slots=True)
class Ranges:
    """An immutable set of non-negative integers, kept as sorted, disjoint, half-open spans.

    acked = Ranges.of([0, 1, 2, 7])
    acked.spans == ((0, 3), (7, 8))
    acked.prefix() == 3
    """

    spans: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, members: Iterable[int]) -> Ranges:
        """The set of these numbers."""
        return cls.from_spans((member, member + 1) for member in members)

    @classmethod
    def upto(cls, stop: int) -> Ranges:
        """The set `[0, stop)`."""
        return cls(((0, stop),)) if stop > 0 else cls()

    @classmethod
    def from_spans(cls, spans: Iterable[tuple[int, int]]) -> Ranges:
        """The union of half-open spans, in any order; empty ones count for nothing."""
        merged: list[tuple[int, int]] = []
        for start, stop in sorted(span for span in spans if span[0] < span[1]):
            if merged and start <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(merged[-1][1], stop))
            else:
                merged.append((start, stop))
        return cls(tuple(merged))

    def add(self, member: int) -> Ranges:
        """With one number more."""
        return self.union(Ranges(((member, member + 1),)))

    def union(self, other: Ranges) -> Ranges:
        """What is in either."""
        if not other.spans:
            return self
        return Ranges.from_spans((*self.spans, *other.spans)) if self.spans else other

    def intersection(self, other: Ranges) -> Ranges:
        """What is in both."""
        found: list[tuple[int, int]] = []
        mine, theirs = iter(self.spans), iter(other.spans)
        left, right = next(mine, None), next(theirs, None)
        while left is not None and right is not None:
            start, stop = max(left[0], right[0]), min(left[1], right[1])
            if start < stop:
                found.append((start, stop))
            if left[1] < right[1]:
                left = next(mine, None)
            else:
                right = next(theirs, None)
        return Ranges(tuple(found))

    def difference(self, other: Ranges) -> Ranges:
        """What is in this and not in the other."""
        found: list[tuple[int, int]] = []
        at = 0
        for start, stop in self.spans:
            cursor = start
            while at < len(other.spans) and other.spans[at][1] <= cursor:
                at += 1
            cut = at
            while cut < len(other.spans) and other.spans[cut][0] < stop:
                if cursor < other.spans[cut][0]:
                    found.append((cursor, other.spans[cut][0]))
                cursor = other.spans[cut][1]
                cut += 1
            at = max(at, cut - 1)  # the last cut may reach into the next span
            if cursor < stop:
                found.append((cursor, stop))
        return Ranges(tuple(found))

    def contains(self, member: int) -> bool:
        """Whether the number is in the set."""
        at = bisect_right(self.spans, (member, 1 << 64)) - 1
        return at >= 0 and self.spans[at][0] <= member < self.spans[at][1]

    def count(self) -> int:
        """How many numbers there are."""
        return sum(stop - start for start, stop in self.spans)

    def prefix(self) -> int:
        """The largest n such that all of `[0, n)` is in the set."""
        return self.spans[0][1] if self.spans and self.spans[0][0] == 0 else 0

    def __iter__(self) -> Iterator[int]:
        for start, stop in self.spans:
            yield from range(start, stop)

    def __bool__(self) -> bool:
        return bool(self.spans)

    def to_pb(self) -> list[pb.Span]:
        """As messages."""
        return [pb.Span(start=start, stop=stop) for start, stop in self.spans]

    @classmethod
    def from_pb(cls, spans: Iterable[pb.Span]) -> Ranges:
        """From messages.

        Raises:
            LimitExceeded: There are more than `MAX_SPANS`.
            WireError: A span is empty or runs backwards.
        """
        pairs: list[tuple[int, int]] = []
        for span in spans:
            if span.start >= span.stop:
                raise WireError(f"span [{span.start}, {span.stop}) is empty or runs backwards")
            if len(pairs) == MAX_SPANS:
                raise LimitExceeded(f"more than {MAX_SPANS} spans")
            pairs.append((span.start, span.stop))
        return cls.from_spans(pairs)
