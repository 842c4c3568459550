"""Named tensors as they differ from others of which the receiver has a copy.

Each tensor that changed is coded in the way that takes the fewest bytes: bit planes, gaps or
differences against the base, or whole. What did not change costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np

from shoal.bit_planes import (
    Steps,
    Unsigned,
    apply_kinds,
    join_bytes,
    read_gaps,
    read_plane,
    split_bytes,
    unzigzag,
    zigzag,
)
from shoal.errors import LimitExceeded, WireError
from shoal.streams import Packed, Packer, StreamReader, pack_each
from shoal.tensors import DTYPES, MAX_AXES, Array, dtype_code
from shoal.v1 import tensor_pb2 as pb
from shoal.wire import frame, unframe

_MOST_STREAMS: Final = 8
_SPARSE, _DENSE = 0.1, 0.5  # below and above, one way to tell which elements differ is better
_UNSIGNED: Final = {size: np.dtype(f"<u{size}") for size in (1, 2, 4, 8)}
_ENOUGH: Final = 4
"""What takes less than this part of a tensor's bytes is not compared with other codings."""


def encode_delta(
    base: Mapping[str, Array], target: Mapping[str, Array], *, packer: Packer = pack_each
) -> bytes:
    """Codes tensors against others; equal arguments give equal bytes.

    Args:
        base: What the receiver has.
        target: What it is to have.
        packer: How streams are written.

    Raises:
        WireError: A dtype of `target` cannot travel, or there are too many axes.
    """
    coded = (_encode(name, base.get(name), target[name], packer) for name in sorted(target))
    return frame(
        pb.TensorSetDelta(
            tensors=[each for each in coded if each is not None],
            removed=sorted(base.keys() - target.keys()),
        )
    )


def decode_delta(base: Mapping[str, Array], data: bytes, *, max_bytes: int) -> dict[str, Array]:
    """The tensors that `encode_delta` was given as its target, from the same base.

    Arrays are read-only or those of `base`. Another base of the same shapes gives other tensors:
    whoever decodes names base and result by their hashes.

    Args:
        base: What it was coded against.
        data: Not trusted.
        max_bytes: Of `data`, and of all tensors together.

    Raises:
        LimitExceeded: The tensors say that they are larger; nothing was allocated.
        WireError: It is malformed, or not against tensors of these names and shapes.
    """
    message = unframe(pb.TensorSetDelta, data, max_bytes=max_bytes)
    named = [delta.name for delta in message.tensors]
    for names in (named, list(message.removed)):
        if names != sorted(set(names)):
            raise WireError("delta: names must be sorted and unique")
    gone = set(message.removed)
    if gone & set(named) or gone - base.keys():
        raise WireError("delta: it removes what is not there, or what it tells")
    tensors = {name: array for name, array in base.items() if name not in gone}
    sizes = {name: array.nbytes for name, array in tensors.items()}
    sizes |= {delta.name: _target_bytes(base, delta) for delta in message.tensors}
    if sum(sizes.values()) > max_bytes:
        raise LimitExceeded(f"delta: {sum(sizes.values())} bytes, the limit is {max_bytes}")
    tensors |= {delta.name: _decode(base, delta) for delta in message.tensors}
    return dict(sorted(tensors.items()))


class _Option(NamedTuple):
    """One way to tell a tensor, and how many bytes it will be shorter."""

    delta: pb.TensorDelta
    saving: int

    @property
    def cost(self) -> int:
        """Bytes that it takes in the end."""
        return self.delta.ByteSize() - self.saving


def _encode(name: str, base: Array | None, target: Array, packer: Packer) -> pb.TensorDelta | None:
    code = dtype_code(name, target)
    after = _bits_of(target)
    options: list[_Option] = []
    if base is not None and (base.dtype, base.shape) == (target.dtype, target.shape):
        before = _bits_of(base)
        if np.array_equal(before, after):
            return None
        if after.dtype == np.uint8:
            options += _steps(name, Steps.between(before, after), packer)
        if not _is_enough(options, target):
            steps = split_bytes(zigzag(after - before))
            options.append(_made(name, pb.TENSOR_CODING_DIFFERENCE, steps, packer))
    if not _is_enough(options, target):
        whole = _made(name, pb.TENSOR_CODING_WHOLE, split_bytes(after), packer)
        whole.delta.dtype = code
        whole.delta.shape.extend(target.shape)
        options.append(whole)
    return min(options, key=lambda option: option.cost).delta


def _is_enough(options: list[_Option], target: Array) -> bool:
    return any(option.cost * _ENOUGH <= target.nbytes for option in options)


def _steps(name: str, steps: Steps, packer: Packer) -> list[_Option]:
    """The codings of small steps; they differ in how they tell which elements change."""
    kinds = [packer(stream) for stream in steps.kinds()]
    found: list[_Option] = []
    if steps.density < _DENSE:
        gaps = steps.gaps()
        found.append(_put(name, pb.TENSOR_CODING_GAPS, [packer(gaps, noise=True), *kinds]))
        found[-1].delta.gap_bytes = len(gaps)
    if steps.density > _SPARSE:
        plane = packer(steps.plane(), noise=True)
        found.append(_put(name, pb.TENSOR_CODING_BIT_PLANES, [plane, *kinds]))
    return found


def _made(name: str, coding: pb.TensorCoding, streams: list[bytes], packer: Packer) -> _Option:
    return _put(name, coding, [packer(stream) for stream in streams])


def _put(name: str, coding: pb.TensorCoding, packed: list[Packed]) -> _Option:
    data = [stream.data for stream in packed]
    delta = pb.TensorDelta(
        name=name, coding=coding, stream_bytes=map(len, data), data=b"".join(data)
    )
    return _Option(delta, sum(len(stream.data) - stream.cost for stream in packed))


def _target_bytes(base: Mapping[str, Array], delta: pb.TensorDelta) -> int:
    """Checks what a delta is of, and gives the bytes of the tensor it becomes."""
    shown = delta.name[:80]
    if len(delta.stream_bytes) > _MOST_STREAMS:
        raise WireError(f"delta: tensor {shown!r}: {len(delta.stream_bytes)} streams")
    if delta.gap_bytes and delta.coding != pb.TENSOR_CODING_GAPS:
        raise WireError(f"delta: tensor {shown!r} is not told by gaps")
    if delta.coding != pb.TENSOR_CODING_WHOLE:
        if delta.name not in base:
            raise WireError(f"delta: the base has no tensor {shown!r}")
        if delta.dtype or delta.shape:
            raise WireError(f"delta: tensor {shown!r} is of its base's dtype and shape")
        return base[delta.name].nbytes
    dtype = DTYPES.get(delta.dtype)
    if dtype is None or len(delta.shape) > MAX_AXES:
        raise WireError(f"delta: tensor {shown!r}: dtype {delta.dtype}, {len(delta.shape)} axes")
    size = dtype.itemsize
    for axis in delta.shape:
        size *= axis
    return size


def _decode(base: Mapping[str, Array], delta: pb.TensorDelta) -> Array:
    reader = StreamReader(delta.data, delta.stream_bytes)
    if delta.coding == pb.TENSOR_CODING_WHOLE:
        dtype, shape = DTYPES[delta.dtype], tuple(delta.shape)
        count = int(np.prod(shape, dtype=object))
        after = join_bytes(count, _UNSIGNED[dtype.itemsize], reader)
    else:
        array = base[delta.name]
        dtype, shape = DTYPES[dtype_code(delta.name, array)], array.shape
        before = _bits_of(array)
        after = _changed(before, delta, reader)
    reader.end()
    if dtype.kind == "b" and (after > 1).any():
        raise WireError(f"delta: tensor {delta.name[:80]!r}: a bool must be 0 or 1")
    after.flags.writeable = False
    try:
        return after.view(dtype).reshape(shape)
    except ValueError as error:  # nothing times more than an array can address
        raise WireError(f"delta: tensor {delta.name[:80]!r}: shape {shape}") from error


def _changed(before: Unsigned, delta: pb.TensorDelta, reader: StreamReader) -> Unsigned:
    if delta.coding == pb.TENSOR_CODING_BIT_PLANES and before.dtype == np.uint8:
        return apply_kinds(before, read_plane(before.size, reader), reader)
    if delta.coding == pb.TENSOR_CODING_GAPS and before.dtype == np.uint8:
        return apply_kinds(before, read_gaps(before.size, delta.gap_bytes, reader), reader)
    if delta.coding == pb.TENSOR_CODING_DIFFERENCE:
        steps = unzigzag(join_bytes(before.size, before.dtype, reader))
        after: Unsigned = before + steps
        return after
    raise WireError(
        f"delta: tensor {delta.name[:80]!r}: coding {delta.coding}; update this program"
    )


def _bits_of(array: Array) -> Unsigned:
    """The elements `[n]` as unsigned integers of their bits, little-endian."""
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    bits: Unsigned = little.reshape(-1).view(_UNSIGNED[array.dtype.itemsize])
    return bits
