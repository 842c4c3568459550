"""The columns of a chunk in one piece of bytes, each as it costs the least to move and to open.

Numbers that do not compress lie as they are, and are read where they came; a column of one value is
that value; what is 0 or 1 is a bit; whole numbers lie in the fewest bytes that hold them; the rest
is a zstd frame. A layout says which. It is the same in one chunk after the other, so a reader takes
it apart once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from shoal import zstd
from shoal.errors import LimitExceeded, WireError
from shoal.tensors import CODES, DTYPES, MAX_AXES, Array, dtype_code
from shoal.v1 import columns_pb2 as pb
from shoal.wire import parse

MAX_LAYOUT_BYTES: Final = 4096
MAX_COUNT: Final = 1 << 31
"""Of T, N, K and each axis."""
COPIED_BYTES: Final = 1024 * 1024
"""What lies as it is costs less to copy, up to this, than to keep a whole message for its sake."""
MAX_ADDRESS: Final = 1 << 62
"""Nothing times more than an array can address."""
_ALIGNMENT: Final = 8
_KNOWN: Final = 1024
"""Layouts that are remembered, for each number of endings."""
_SHARED_NUMBERS: Final = 16_384
"""Of a column of one value that all chunks share which have it."""
_SHARED: Final = 64
"""Such columns, at most."""
PLAIN, ZSTD = pb.COLUMN_FORM_PLAIN, pb.COLUMN_FORM_ZSTD
CONSTANT, BITS = pb.COLUMN_FORM_CONSTANT, pb.COLUMN_FORM_BITS
PLANES = pb.COLUMN_FORM_PLANES
_FRAMED: Final = frozenset({ZSTD, PLANES})

NAMES: Final = tuple(
    field.name
    for field in pb.ColumnLayout.DESCRIPTOR.fields
    if field.message_type is pb.Column.DESCRIPTOR
)
OPTIONAL: Final = frozenset({"initial_state", "priorities"})
_PER_END: Final = frozenset({"final_observations", "episode_returns", "episode_lengths"})
_DTYPES: Final = {
    "log_probs": np.dtype("<f4"),
    "rewards": np.dtype("<f4"),
    "terminated": np.dtype("?"),
    "truncated": np.dtype("?"),
    "initial_state": np.dtype("<f4"),
    "priorities": np.dtype("<f4"),
    "episode_returns": np.dtype("<f8"),
    "episode_lengths": np.dtype("<i8"),
}
_NUMBERS: Final = frozenset(_DTYPES) - {"initial_state"}
"""Columns of which an item is one number."""


class Packed(NamedTuple):
    """A column as it goes into a chunk's bytes.

    Attributes:
        form: How it lies there.
        stored: The dtype of its values there.
        data: They.
    """

    form: pb.ColumnForm
    stored: np.dtype[np.generic]
    data: bytes | memoryview


class Written(NamedTuple):
    """Columns in one piece of bytes, and what a reader must know of them."""

    layout: pb.ColumnLayout
    frame_bytes: list[int]
    data: bytes


class _Slot(NamedTuple):
    """A column of a layout, once the number of endings is known.

    Attributes:
        name: Of the column.
        form: How it lies.
        dtype: Of the array.
        stored: Of the values where they lie.
        shape: Of the array.
        numbers: How many are in it.
        at: Where it lies; of a frame, 0.
    """

    name: str
    form: pb.ColumnForm
    dtype: np.dtype[np.generic]
    stored: np.dtype[np.generic]
    shape: tuple[int, ...]
    numbers: int
    at: int


class _Plan(NamedTuple):
    """Where everything lies.

    Attributes:
        as_is: Name, shape, dtype and place of columns whose bytes are the array's.
        slots: Of all others that are not in frames.
        framed: Of those that are.
        frames_at: Where the frames begin.
        size_bytes: Of all arrays.
    """

    as_is: tuple[tuple[str, tuple[int, ...], np.dtype[np.generic], int], ...]
    slots: tuple[_Slot, ...]
    framed: tuple[_Slot, ...]
    frames_at: int
    size_bytes: int


def write_columns(
    arrays: Mapping[str, Array], packed: Mapping[str, Packed], *, steps: int, envs: int
) -> Written:
    """Lays columns one after the other.

    Args:
        arrays: By name, all but `OPTIONAL` ones.
        packed: What goes into the bytes for each.
        steps: T.
        envs: N.

    Raises:
        WireError: A dtype cannot travel, or there are too many axes.
    """
    layout = pb.ColumnLayout(steps=steps, envs=envs)
    pieces: list[bytes | memoryview] = []
    frames: list[bytes | memoryview] = []
    at = 0
    for name in NAMES:
        if name not in arrays:
            continue
        array, (form, stored, data) = arrays[name], packed[name]
        column = getattr(layout, name)
        column.dtype, column.form = dtype_code(name, array), form
        column.shape.extend(array.shape[_lead_axes(name) :])
        if stored != array.dtype:
            column.stored = CODES[stored]
        if form in _FRAMED:
            frames.append(data)
            continue
        gap = -at % _ALIGNMENT
        pieces += (bytes(gap), data)
        at += gap + len(data)
    return Written(layout, [len(frame) for frame in frames], b"".join([*pieces, *frames]))


def read_columns(
    layout: bytes,
    ends: int,
    frame_bytes: Sequence[int],
    data: bytes | memoryview,
    *,
    max_bytes: int,
) -> dict[str, Array]:
    """Reads what `write_columns` wrote: read-only arrays by name.

    What is not compressed is copied once, all together; where it is large it shares `data` instead.

    Args:
        layout: Serialized.
        ends: K.
        frame_bytes: Of each column in a frame.
        data: All columns.
        max_bytes: Of the arrays, all together.

    Raises:
        LimitExceeded: They say that they are larger than that; nothing was allocated for them.
        WireError: The layout and the bytes do not agree, or a frame is damaged.
    """
    plan = _plan(layout, ends)
    if plan.size_bytes > max_bytes:
        raise LimitExceeded(f"chunk: {plan.size_bytes} bytes once opened, the limit is {max_bytes}")
    if len(frame_bytes) != len(plan.framed):
        raise WireError(f"chunk: {len(frame_bytes)} frames, the layout has {len(plan.framed)}")
    if plan.frames_at + sum(frame_bytes) != len(data):
        raise WireError("chunk: its columns need more bytes than it has, or fewer")
    view, at = memoryview(data), plan.frames_at
    here = bytes(view[:at]) if at <= COPIED_BYTES else data
    arrays: dict[str, Array] = {
        name: np.ndarray(shape, dtype, here, where) for name, shape, dtype, where in plan.as_is
    }
    if here is data:
        arrays = {name: _fit(array) for name, array in arrays.items()}
    for slot in plan.slots:
        arrays[slot.name] = _read(slot, here)
    for slot, size in zip(plan.framed, frame_bytes, strict=True):
        arrays[slot.name] = _open(slot, view[at : at + size])
        at += size
    return arrays


def _read(slot: _Slot, data: bytes | memoryview) -> Array:
    """A column that is not in a frame; `data` is long enough."""
    form, shape, at = slot.form, slot.shape, slot.at
    if form == PLAIN:
        return _values(slot, np.ndarray(shape, slot.stored, data, at))
    if form == CONSTANT:
        item = bytes(data[at : at + slot.stored.itemsize])
        if slot.numbers > _SHARED_NUMBERS:
            return _constant(slot, item)
        return _shared_constant(slot, item)
    bits = np.ndarray((slot.numbers + 7) >> 3, np.uint8, data, at)
    array: Array = _bits(slot.dtype).take(bits, 0).reshape(-1)[: slot.numbers]
    array.flags.writeable = False
    return array.reshape(shape)


@lru_cache(_SHARED)
def _shared_constant(slot: _Slot, item: bytes) -> Array:
    return _constant(slot, item)


def _constant(slot: _Slot, item: bytes) -> Array:
    array: Array = np.empty(slot.shape, slot.dtype)
    array[...] = _values(slot, np.ndarray((), slot.stored, item))
    array.flags.writeable = False
    return array


@lru_cache(len(DTYPES))
def _bits(dtype: np.dtype[np.generic]) -> Array:
    """`[256, 8]`, the bits of each byte as numbers, the lowest first."""
    bits: Array = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    return bits.astype(dtype)


def _open(slot: _Slot, frame: memoryview) -> Array:
    size = slot.numbers * slot.stored.itemsize
    try:
        raw = zstd.decompress(frame, size)
    except (zstd.ZstdError, MemoryError) as error:
        raise WireError(f"chunk: {slot.name} cannot be decompressed ({error})") from error
    values: bytes | memoryview = raw
    if slot.form == PLANES:
        values = _joined(np.ndarray((slot.stored.itemsize, slot.numbers), np.uint8, raw))
    return _values(slot, np.ndarray(slot.shape, slot.stored, values))


def _joined(planes: Array) -> memoryview:
    """The bytes of values, from `[itemsize, count]` of them."""
    values: Array = np.empty(planes.shape[::-1], np.uint8)
    for at, plane in enumerate(planes):
        values[:, at] = plane
    values.flags.writeable = False
    return values.reshape(-1).data


def _values(slot: _Slot, array: Array) -> Array:
    """The array in its own dtype."""
    dtype = slot.dtype
    if dtype.kind == "b" and array.size and np.maximum.reduce(array.view(np.uint8), None) > 1:
        raise WireError(f"chunk: {slot.name}: a bool must be 0 or 1")
    return _fit(array if slot.stored == dtype else array.astype(dtype))


def _fit(array: Array) -> Array:
    """The array, read-only, where a processor likes it."""
    if not array.flags.aligned:
        array = array.copy()
    array.flags.writeable = False
    return array


@lru_cache(_KNOWN)
def _plan(layout: bytes, ends: int) -> _Plan:
    message, columns = _columns(layout)
    if ends > min(MAX_COUNT, message.steps * message.envs):
        raise WireError(f"chunk: {ends} episodes cannot have ended in it")
    as_is: list[tuple[str, tuple[int, ...], np.dtype[np.generic], int]] = []
    slots: list[_Slot] = []
    framed: list[_Slot] = []
    at = total = 0
    for name, column in columns.items():
        shape = (*_lead(name, message.steps, message.envs, ends), *column.shape)
        dtype = DTYPES[column.dtype]
        stored = DTYPES[column.stored] if column.stored else dtype
        count = math.prod(shape)
        if math.prod(axis or 1 for axis in shape) * dtype.itemsize > MAX_ADDRESS:
            raise WireError(f"chunk: {name}: shape {shape} of {dtype}")
        total += count * dtype.itemsize
        if column.form in _FRAMED:
            framed.append(_Slot(name, column.form, dtype, stored, shape, count, 0))
            continue
        at += -at % _ALIGNMENT
        if column.form == PLAIN and stored == dtype and dtype.kind != "b":
            as_is.append((name, shape, dtype, at))
        else:
            slots.append(_Slot(name, column.form, dtype, stored, shape, count, at))
        at += {
            BITS: (count + 7) >> 3,
            CONSTANT: stored.itemsize,
        }.get(column.form, count * stored.itemsize)
    return _Plan(tuple(as_is), tuple(slots), tuple(framed), at, total)


@lru_cache(_KNOWN)
def _columns(layout: bytes) -> tuple[pb.ColumnLayout, dict[str, pb.Column]]:
    """A layout, checked, and its columns by name."""
    if len(layout) > MAX_LAYOUT_BYTES:
        raise WireError(f"chunk: a layout of {len(layout)} bytes, the limit is {MAX_LAYOUT_BYTES}")
    message = parse(pb.ColumnLayout, layout)
    if not (0 < message.steps < MAX_COUNT and 0 < message.envs < MAX_COUNT):
        raise WireError(f"chunk: rewards must be [T, N], not [{message.steps}, {message.envs}]")
    columns: dict[str, pb.Column] = {}
    for name in NAMES:
        if message.HasField(name):
            columns[name] = getattr(message, name)
            _check_column(name, columns[name])
        elif name not in OPTIONAL:
            raise WireError(f"chunk: {name} are missing")
    finals, observations = columns["final_observations"], columns["observations"]
    if (finals.dtype, finals.shape) != (observations.dtype, observations.shape):
        raise WireError("chunk: final observations must be shaped like observations")
    return message, columns


def _check_column(name: str, column: pb.Column) -> None:
    dtype, stored = DTYPES.get(column.dtype), DTYPES.get(column.stored or column.dtype)
    if dtype is None or stored is None:
        raise WireError(f"chunk: {name}: unknown dtype code {column.dtype} or {column.stored}")
    if dtype != _DTYPES.get(name, dtype):
        raise WireError(f"chunk: {name} must be {_DTYPES[name]}, not {dtype}")
    if column.form not in (PLAIN, ZSTD, CONSTANT, BITS, PLANES):
        raise WireError(f"chunk: {name}: unknown form {column.form}; update this program")
    whole = dtype.kind in "iuf" and stored.kind in "iu" and stored.itemsize < dtype.itemsize
    if stored != dtype and not whole:
        raise WireError(f"chunk: {name}: {dtype} cannot lie there as {stored}")
    if column.form == BITS and dtype.kind not in "biu":
        raise WireError(f"chunk: {name}: {dtype} cannot lie there as bits")
    axes = len(column.shape) + _lead_axes(name)
    if axes > MAX_AXES or any(axis >= MAX_COUNT for axis in column.shape):
        raise WireError(f"chunk: {name}: {axes} axes, or one that is too long")
    if name in _NUMBERS and column.shape:
        raise WireError(f"chunk: {name}: an item must be a number, not {tuple(column.shape)}")
    if name == "initial_state" and (len(column.shape) != 1 or not column.shape[0]):
        raise WireError("chunk: initial_state must be [N, S], S > 0")


def _lead(name: str, steps: int, envs: int, ends: int) -> tuple[int, ...]:
    """The axes before those of an item."""
    if name in _PER_END:
        return (ends,)
    if name == "initial_state":
        return (envs,)
    return (steps + (name == "observations"), envs)


def _lead_axes(name: str) -> int:
    return 1 if name in _PER_END or name == "initial_state" else 2
