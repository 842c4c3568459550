"""Which form each column of a chunk travels in: whoever sends decides, by what it costs.

Columns that gain little by compression cost a reader more than their bytes are worth, above all
floating-point numbers, whose lower halves are noise. Whether one does is known from the chunk
before, and tried again now and then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from shoal import zstd
from shoal.columns import BITS, CONSTANT, PLAIN, PLANES, ZSTD, Packed
from shoal.tensors import Array
from shoal.v1 import columns_pb2 as pb

TRIED_AGAIN: Final = 32
"""Chunks in which a large column keeps its form."""
_LEVEL: Final = 1
_SMALL: Final = 1024
"""Bytes of a column that is tried each time, as that costs nothing."""
_WHOLE: Final = tuple(np.dtype(code) for code in ("u1", "i1", "<u2", "<i2", "<u4", "<i4"))
_LARGEST: Final = 2**32 - 1
_LOOKED_AT: Final = 16
"""Numbers at the start of a column, most of which tell fractions from whole numbers."""


@dataclass(frozen=True, slots=True)
class Compression:
    """What is worth a frame.

    Attributes:
        least_gain: Part of a column's bytes that compression must save.
        least_bytes: How many these must be at the least: each frame takes time to open.
        patience: Chunks in which a column keeps its form; 1 looks for the best each time.
    """

    least_gain: float
    least_bytes: int
    patience: int


BALANCED: Final = Compression(1 / 14, 512, TRIED_AGAIN)
"""Moves and opens with the least work; bytes stay about as few as of the whole chunk compressed."""
SMALLEST: Final = Compression(0.0, 1, 1)
"""For links that are paid by the byte."""


@dataclass(slots=True)
class _Known:
    """The form of a column, and for how many chunks it is not looked for again."""

    form: pb.ColumnForm
    chunks: int


class Packing:
    """Packs the columns of one chunk after the other. Used by one thread.

    packing = Packing(BALANCED)
    packed = packing.pack({"rewards": rewards, ...})
    """

    def __init__(self, compression: Compression = BALANCED) -> None:
        self._compression = compression
        self._known: dict[str, _Known] = {}

    def pack(self, arrays: Mapping[str, Array]) -> dict[str, Packed]:
        """What goes into the bytes for each column."""
        return {name: self._column(name, array) for name, array in arrays.items()}

    def _column(self, name: str, array: Array) -> Packed:
        flat = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(-1)
        if not flat.size:
            return Packed(PLAIN, flat.dtype, b"")
        raw = flat.view(np.uint8)
        if _is_constant(flat):
            return Packed(CONSTANT, flat.dtype, raw[: flat.itemsize].tobytes())
        if flat.dtype.kind == "b":
            return Packed(BITS, flat.dtype, np.packbits(flat, bitorder="little").tobytes())
        stored = _narrowest(flat) if flat.itemsize > 1 else None
        if stored is not None:
            narrow = flat.astype(stored)
            if int(narrow.max()) <= 1 and stored.kind == "u" and flat.dtype.kind != "f":
                return Packed(BITS, flat.dtype, np.packbits(narrow, bitorder="little").tobytes())
            flat = narrow
        return self._numbers(name, flat)

    def _numbers(self, name: str, flat: Array) -> Packed:
        known = self._known.get(name)
        if known is None or flat.nbytes <= _SMALL or not known.chunks:
            known = self._known[name] = _Known(self._best(flat), self._compression.patience)
        known.chunks -= 1
        return Packed(known.form, flat.dtype, _written(flat, known.form))

    def _best(self, flat: Array) -> pb.ColumnForm:
        """The form of the fewest bytes, if it saves enough of them."""
        sizes = {ZSTD: len(_written(flat, ZSTD))}
        if flat.itemsize > 1:
            sizes[PLANES] = len(_written(flat, PLANES))
        form = min(sizes, key=sizes.__getitem__)
        saved = flat.nbytes - sizes[form]
        wanted = self._compression
        enough = saved >= max(wanted.least_bytes, wanted.least_gain * flat.nbytes)
        return form if enough else PLAIN


def _written(flat: Array, form: pb.ColumnForm) -> bytes | memoryview:
    raw = flat.view(np.uint8)
    if form == PLANES:
        raw = raw.reshape(-1, flat.itemsize).T.reshape(-1)
    return raw.data if form == PLAIN else zstd.compress(raw.data, level=_LEVEL)


def _is_constant(flat: Array) -> bool:
    """Whether all values have the same bits."""
    bits = flat.view(f"u{flat.itemsize}") if flat.itemsize > 1 else flat.view(np.uint8)
    return bool(bits[0] == bits[-1] and (bits == bits[0]).all())


def _narrowest(flat: Array) -> np.dtype[np.generic] | None:
    """The smallest dtype of whole numbers that holds all values to the bit; None: its own does."""
    first = flat[:_LOOKED_AT]
    if flat.dtype.kind == "f" and (first != np.rint(first)).any():
        return None  # seen without reading all of it
    low, high = flat.min().item(), flat.max().item()
    if not (low >= -_LARGEST and high <= _LARGEST):  # NaN is not either
        return None
    for stored in _WHOLE:
        if stored.itemsize >= flat.itemsize:
            return None
        limits = np.iinfo(stored)
        if limits.min <= low and high <= limits.max:
            same = flat.dtype.kind != "f" or _same_bits(flat, flat.astype(stored))
            return stored if same else None
    return None


def _same_bits(flat: Array, narrow: Array) -> bool:
    """Whether floats are whole numbers, and none of them is -0."""
    return flat.tobytes() == narrow.astype(flat.dtype).tobytes()
