"""From trained weights to what devices run: integers and scales, checked against fp32.

The graph of each precision is built once; a version only recomputes tensors. Weights are symmetric
per output channel, activations u8, biases s32 in the scale of the product, which is the scheme of
onnxruntime's own static quantizer. Weights take 7 bits: kernels without VNNI add pairs of u8 * s8
products in 16 bits and would saturate with 8, so the same policy would act differently on two
machines. Ranges are held while they fit, so that few integers change between versions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import onnxruntime as ort
import torch
from numpy.typing import NDArray

from cloud_learner.models.actor_critic import ActorCritic, Dense, PolicyWeights
from cloud_learner.models.policy_graph import Architecture, Precision, build_graph
from shoal.errors import PolicyRejected
from shoal.noise import RUN_ID_BYTES, noise_block
from shoal.policy import ACTION, DISTRIBUTION, LOG_PROB, NOISE, OBSERVATION, Golden
from shoal.spaces import Discrete, EnvSpec
from shoal.tensors import Array

PRECISIONS: Final[tuple[Precision, ...]] = ("int8", "int8_fp32_head", "fp32")
WEIGHT_MAX: Final = 64  # 255 * (64 + 64) fits 16 bits with its sign
GOLDEN_ROWS: Final = 32
CALIBRATION_ROWS: Final = 512
_INPUT_MAX: Final = 127.0
_INPUT_ZERO: Final = 128
_ACTIVATION_MAX: Final = 255.0
_HEADROOM: Final = 1.1  # a range that moves takes this much more than it needs
_SLACK: Final = 0.6  # and is held until it needs less than this part of itself
_MARGIN: Final = 1e-3  # golden actions win by this much: rounding on another machine cannot flip it
_LOG_TAU: Final = math.log(2.0 * math.pi)


@dataclass(frozen=True, slots=True, eq=False)
class Quantized:
    """A policy that is ready to be published.

    Attributes:
        precision: Names the graph in `Quantizer.graphs`.
        tensors: Every initializer of that graph.
        golden: Inputs, and what this machine's onnxruntime gives for them.
        kl_quantization: Nats, the mean of KL(fp32 || as published) over the calibration rows.
        refused: KL of each precision that was tried before and was over the bound.
    """

    precision: Precision
    tensors: Mapping[str, Array]
    golden: Golden
    kl_quantization: float
    refused: Mapping[str, float]


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedWeight:
    """A weight as integers.

    Attributes:
        values: s8 `[in, out]`, from -`WEIGHT_MAX` to `WEIGHT_MAX`.
        scale: float32 `[out]`.
    """

    values: NDArray[np.int8]
    scale: NDArray[np.float32]


class Quantizer:
    """Quantizes versions of one network.

    >>> quantizer = Quantizer(spec, model)
    >>> quantized = quantizer.quantize(model, observations)
    >>> graph = quantizer.graphs[quantized.precision]
    """

    def __init__(self, spec: EnvSpec, model: ActorCritic, *, kl_max: float = 0.01) -> None:
        """Builds the graphs.

        Args:
            spec: The spaces the model was built for.
            model: Says the layer widths; its weights do not matter yet.
            kl_max: Quantization gap, in nats, over which the next precision is tried.
        """
        architecture = Architecture(spec, model.hidden)
        self.graphs: dict[Precision, bytes] = {
            precision: build_graph(architecture, precision) for precision in PRECISIONS
        }
        self._spec = spec
        self._kl_max = kl_max
        self._ranges: dict[str, NDArray[np.float32]] = {}

    def quantize(self, model: ActorCritic, observations: Array) -> Quantized:
        """Makes the tensors of a version and runs them.

        Args:
            model: What was trained.
            observations: `[M, *obs]`, recent ones: they set the ranges and measure the gap.

        Raises:
            PolicyRejected: Weights or outputs are not finite (reason `non_finite`).
        """
        weights = model.policy_weights()
        if not weights.finite:
            raise PolicyRejected(
                "non_finite", "the policy has weights that are NaN or infinite: not published"
            )
        rows = _thin(observations, CALIBRATION_ROWS)
        held = dict(self._ranges)
        reference = self._calibrate(weights, rows)
        if not np.isfinite(reference).all():
            self._ranges = held
            raise PolicyRejected(
                "non_finite", "the policy's outputs are NaN or infinite: not published"
            )
        noise = noise_block(bytes(RUN_ID_BYTES), 0, 1, len(rows), self._spec.action)[0]
        refused: dict[str, float] = {}
        for precision in PRECISIONS:
            tensors = self._tensors(weights, precision)
            session = open_session(self.graphs[precision], tensors)
            distribution = session.run([DISTRIBUTION], {OBSERVATION: rows, NOISE: noise})[0]
            gap = model.distribution.kl(
                torch.from_numpy(reference), torch.from_numpy(distribution)
            ).mean()
            kl = max(0.0, float(gap))  # a mean of rounding errors may lie below
            if kl <= self._kl_max or (precision == PRECISIONS[-1] and math.isfinite(kl)):
                golden = self._golden(session, rows, noise, distribution)
                return Quantized(precision, tensors, golden, kl, refused)
            refused[precision] = kl
        raise PolicyRejected("non_finite", "the policy's log-probabilities are NaN: not published")

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The ranges that are held, by name."""
        return {name: torch.from_numpy(held.copy()) for name, held in self._ranges.items()}

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Goes on with the ranges of an earlier process, so that equal weights give equal bytes."""
        self._ranges = {name: held.numpy().copy() for name, held in state.items()}

    def _calibrate(self, weights: PolicyWeights, rows: Array) -> NDArray[np.float32]:
        """Moves the ranges and gives the fp32 distribution `[M, P]`."""
        inputs = rows.reshape(len(rows), -1).astype(np.float32)
        self._hold("input", np.abs(inputs).max(axis=0))
        hidden = torch.from_numpy(inputs)  # numpy's BLAS would start threads of its own
        last = len(weights.layers) - 1
        for index, layer in enumerate(weights.layers):
            weight, bias = torch.from_numpy(layer.weight), torch.from_numpy(layer.bias)
            hidden = torch.addmm(bias, hidden, weight)
            if index != last:
                hidden = hidden.relu_()
                self._hold(f"output.{index}", hidden.max().reshape(1).numpy())
        outputs: NDArray[np.float32] = hidden.numpy()
        if weights.log_std is None:
            return outputs
        return np.concatenate((outputs, np.broadcast_to(weights.log_std, outputs.shape)), axis=1)

    def _tensors(self, weights: PolicyWeights, precision: Precision) -> dict[str, Array]:
        tensors: dict[str, Array] = {}
        last = len(weights.layers) - 1
        whole = {"int8": last + 1, "int8_fp32_head": last, "fp32": 0}[precision]
        if whole:
            gain = np.float32(_INPUT_MAX) / self._ranges["input"]
            scale: NDArray[np.float32] = np.ones((), np.float32)
            tensors |= {
                "input.gain": gain,
                "input.scale": scale,
                "input.zero": np.array(_INPUT_ZERO, np.uint8),
            }
            for index, layer in enumerate(weights.layers[:whole]):
                folded = layer.weight / gain[:, None] if index == 0 else layer.weight
                self._add_layer(tensors, index, Dense(folded, layer.bias), scale)
                if index != last:
                    scale = (self._ranges[f"output.{index}"] / np.float32(_ACTIVATION_MAX))[0]
                    tensors[f"output.{index}.scale"] = np.asarray(scale, np.float32)
                    tensors[f"output.{index}.zero"] = np.zeros((), np.uint8)
        for index in range(whole, last + 1):
            tensors[f"weight.{index}"] = weights.layers[index].weight
            tensors[f"bias.{index}"] = weights.layers[index].bias
        if weights.log_std is not None:
            offset = -float(weights.log_std.sum(dtype=np.float64)) - 0.5 * _LOG_TAU * len(
                weights.log_std
            )
            tensors |= {
                "log_std": weights.log_std,
                "std": np.exp(weights.log_std),
                "log_prob.offset": np.array(offset, np.float32),
            }
        return tensors

    def _add_layer(
        self,
        tensors: dict[str, Array],
        index: int,
        layer: Dense,
        input_scale: NDArray[np.float32],
    ) -> None:
        key = f"weight.{index}"
        reach = self._hold(key, np.abs(layer.weight).max(axis=0))
        quantized = quantize_weight(layer.weight, reach)
        bias = np.rint(layer.bias.astype(np.float64) / (input_scale * quantized.scale))
        limit = np.iinfo(np.int32)
        tensors |= {
            key: quantized.values,
            f"{key}.scale": quantized.scale,
            f"{key}.zero": np.zeros(quantized.scale.shape, np.int8),
            f"bias.{index}": bias.clip(limit.min, limit.max).astype(np.int32),
        }

    def _hold(self, name: str, reach: NDArray[np.float32]) -> NDArray[np.float32]:
        held = hold_range(self._ranges.get(name), reach)
        self._ranges[name] = held
        return held

    def _golden(
        self,
        session: ort.InferenceSession,
        rows: Array,
        noise: NDArray[np.float32],
        distribution: NDArray[np.float32],
    ) -> Golden:
        clear = np.arange(len(rows))
        if isinstance(self._spec.action, Discrete) and self._spec.action.n > 1:
            best = np.partition(distribution + noise, -2, axis=1)[:, -2:]
            decided = np.flatnonzero(best[:, 1] - best[:, 0] > _MARGIN)
            clear = decided if decided.size else clear
        chosen = clear[:: -(-len(clear) // GOLDEN_ROWS)]
        inputs = {OBSERVATION: rows[chosen], NOISE: noise[chosen]}
        actions, log_probs = session.run([ACTION, LOG_PROB], inputs)
        return Golden(inputs[OBSERVATION], inputs[NOISE], actions, log_probs)


def open_session(graph: bytes, tensors: Mapping[str, Array]) -> ort.InferenceSession:
    """A single-threaded CPU session over a weightless graph and its tensors."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    values = [ort.OrtValue.ortvalue_from_numpy(np.asarray(a, order="C")) for a in tensors.values()]
    options.add_external_initializers(list(tensors), values)
    return ort.InferenceSession(graph, options, providers=["CPUExecutionProvider"])


def quantize_weight(
    weight: NDArray[np.float32], reach: NDArray[np.float32] | None = None
) -> QuantizedWeight:
    """Symmetric, per output channel, as onnxruntime's static quantizer with a reduced range.

    Args:
        weight: float32 `[in, out]`.
        reach: float32 `[out]`, the magnitude that becomes `WEIGHT_MAX`; each channel's largest if
            None.
    """
    largest = np.abs(weight).max(axis=0) if reach is None else reach
    scale = (largest.astype(np.float64) / WEIGHT_MAX).astype(np.float32)
    scale[scale < np.finfo(np.float32).tiny] = 1.0
    values = np.rint(weight / scale).clip(-WEIGHT_MAX, WEIGHT_MAX).astype(np.int8)
    return QuantizedWeight(values=values, scale=scale)


def hold_range(held: NDArray[np.float32] | None, reach: NDArray[np.float32]) -> NDArray[np.float32]:
    """Moves ranges only where they no longer fit.

    Args:
        held: float32 `[C]`, what was used before; None at first.
        reach: float32 `[C]`, what is needed now.

    Returns:
        float32 `[C]`: as held, or where that is too small or far too large, the need with some
        headroom; exactly the need at first. Never 0.
    """
    needed = np.where(reach > 0.0, reach, 1.0).astype(np.float32)
    if held is None:
        return needed
    moves = (needed > held) | (needed < held * np.float32(_SLACK))
    return np.where(moves, needed * np.float32(_HEADROOM), held)


def _thin(observations: Array, rows: int) -> Array:
    """At most `rows` of them, evenly spread, in native byte order."""
    taken = observations[:: max(1, -(-len(observations) // rows))]
    return np.ascontiguousarray(taken.astype(taken.dtype.newbyteorder("="), copy=False))
