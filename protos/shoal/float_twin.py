"""The float twin of an int8 policy: the same integers dequantized, for the network's fp32 graph.

Where fp32 is faster than int8, a device acts with the twin. Its tensors never travel: they follow
from those of the int8 policy, by float64 arithmetic on one element at a time, so they are equal on
every machine. (A sum in another order would not be.)

A layer in integers gives `(u - z) @ w * (a * s) + b * (a * s)`: units u in a scale a around a zero
z, weights w in scales s. The fp32 graph gives `x @ weight + bias`, x being what u was made from:
`u = x / unit + zero`, with a unit and a zero for each piece that the layer reads. Hence
`weight = w * s * (a / unit)` and `bias = (b + (zero - z) @ w) * (a * s)`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shoal.errors import PolicyRejected
from shoal.tensors import Array

READS: Final = "shoal.reads"
"""Metadata of an int8 graph: what each of its layers reads, as `encode_reads` writes it."""
CLIPPED_AT: Final = 10.0
"""The fp32 graph clips normalized numbers there: where the int8 graph's units end."""
_UNITS: Final = 127.0  # units of a number at the end of its range
_JOINED: Final = "joined"
_DENSE_AXES: Final = 2
_GAIN, _SHIFT = "input.gain", "input.shift"


@dataclass(frozen=True, slots=True)
class Read:
    """Some columns that a layer reads.

    Attributes:
        key: Names their scale and zero point: `key.scale`, `key.zero`.
        width: How many they are (channels, for a convolution).
    """

    key: str
    width: int


Reads = Sequence[Sequence[Read]]
"""What each layer reads, side by side; the layers in order of their numbers."""


def encode_reads(reads: Reads) -> str:
    """As metadata of a graph."""
    plain = [[[read.key, read.width] for read in layer] for layer in reads]
    return json.dumps(plain, separators=(",", ":"))


def decode_reads(metadata: Mapping[str, str]) -> Reads:
    """What the layers of an int8 graph read.

    Raises:
        PolicyRejected: With the reason `float_twin`: the graph does not say.
    """
    try:
        plain = json.loads(metadata[READS])
        reads = [[Read(str(key), int(width)) for key, width in layer] for layer in plain]
    except (KeyError, ValueError, TypeError, RecursionError) as error:
        raise _rejected("its graph does not say what its layers read") from error
    return reads


def float_tensors(tensors: Mapping[str, Array], reads: Reads) -> dict[str, Array]:
    """Every initializer of the fp32 graph, from those of the int8 graph.

    Args:
        tensors: Of the int8 graph; `GraphRunner` of the learner says which there are.
        reads: What its layers read.

    Raises:
        PolicyRejected: With the reason `float_twin`: they are not those of an int8 graph.
    """
    try:
        made = {
            name: array
            for place, layer in enumerate(reads)
            for name, array in _layer(tensors, place, layer).items()
        }
        if _SHIFT in tensors:
            made[_GAIN] = (_wide(tensors[_GAIN]) * (CLIPPED_AT / _UNITS)).astype(np.float32)
    except KeyError as error:
        raise _rejected(f"{error.args[0]} is missing") from error
    except ValueError as error:  # shapes that do not fit together
        raise _rejected(str(error)) from error
    done = {*made, *_spent(reads)}
    made |= {name: array for name, array in tensors.items() if name not in done}
    for name, array in made.items():
        if array.dtype != np.float32:
            raise _rejected(f"{name} is {array.dtype}, and no layer reads it")
    return made


def _layer(tensors: Mapping[str, Array], place: int, layer: Sequence[Read]) -> dict[str, Array]:
    """Weights and bias of one layer."""
    key = f"weight.{place}"
    weight, bias = tensors[key], tensors[f"bias.{place}"]
    if weight.dtype != np.int8 or bias.dtype != np.int32:
        raise _rejected(f"layer {place} is not in integers")
    reads = layer[0].key if len(layer) == 1 else _JOINED
    scale, zero = _wide(tensors[f"{reads}.scale"]), int(tensors[f"{reads}.zero"])
    units = np.concatenate([np.broadcast_to(_unit(tensors, r.key), r.width) for r in layer])
    zeros = np.concatenate([np.full(r.width, _zero(tensors, r.key)) for r in layer]) - zero
    dense = weight.ndim == _DENSE_AXES
    rows = weight.astype(np.int64) if dense else np.moveaxis(weight.astype(np.int64), 0, -1)
    rows = rows - tensors[f"{key}.zero"].astype(np.int64)  # [in, ..., out]
    if len(rows) != len(units):
        raise _rejected(f"layer {place} has {len(rows)} inputs and reads {len(units)} numbers")
    per_unit = scale * _wide(tensors[f"{key}.scale"])  # [out]
    total = bias.astype(np.int64) + np.tensordot(zeros, rows, axes=1).reshape(-1, len(bias)).sum(0)
    own = rows * _wide(tensors[f"{key}.scale"])
    made = own * (scale / units).reshape(-1, *(1,) * (rows.ndim - 1))
    if not dense:
        made = np.moveaxis(made, -1, 0)
    return {
        key: np.ascontiguousarray(made, np.float32),
        f"bias.{place}": (total * per_unit).astype(np.float32),
    }


def _unit(tensors: Mapping[str, Array], key: str) -> NDArray[np.float64]:
    """float64 `[]` or `[width]`: what one unit stands for, in numbers of the fp32 graph."""
    if _is_pixels(tensors, key):
        return np.ones(())
    scale = _wide(tensors[f"{key}.scale"])
    if key != "input":
        return scale
    return scale / (_UNITS / CLIPPED_AT if _SHIFT in tensors else _wide(tensors[_GAIN]))


def _zero(tensors: Mapping[str, Array], key: str) -> int:
    return 0 if _is_pixels(tensors, key) else int(tensors[f"{key}.zero"])


def _is_pixels(tensors: Mapping[str, Array], key: str) -> bool:
    """Whether the numbers are units as they are observed."""
    return key.startswith("image.") or (key == "input" and _GAIN not in tensors)


def _spent(reads: Reads) -> set[str]:
    """Tensors of the integers that the fp32 graph does without."""
    keys = {read.key for layer in reads for read in layer} | {_JOINED}
    keys |= {f"weight.{place}" for place in range(len(reads))}
    return {f"{key}.{end}" for key in keys for end in ("scale", "zero")} | {_GAIN}


def _wide(array: Array) -> NDArray[np.float64]:
    return np.asarray(array, np.float64)


def _rejected(problem: str) -> PolicyRejected:
    return PolicyRejected("float_twin", f"the policy has no float twin: {problem}")
