"""From trained weights to what devices run: integers and scales, checked against fp32.

The graph of each precision is built once; a version only recomputes tensors. A version whose gap
nears the bound has integers and ranges that owe nothing to the one before; one that is over it even
so is published with its head in fp32, then in fp32 throughout.
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
from torch import Tensor

from cloud_learner.models.graph_layers import Precision
from cloud_learner.models.policy import Policy
from cloud_learner.models.policy_graph import PRECISIONS, build_graph
from cloud_learner.quantization.calibration import answer, calibrate, fresh_ranges
from cloud_learner.quantization.dead_zone import DeadZone
from cloud_learner.quantization.gap import Gap, measure
from cloud_learner.quantization.golden import GoldenInputs
from cloud_learner.quantization.sample import Sample
from cloud_learner.quantization.session import feeds, open_session
from cloud_learner.quantization.tensors import Ranges, make_tensors
from shoal.errors import PolicyRejected
from shoal.noise import RUN_ID_BYTES, noise_block
from shoal.policy import DISTRIBUTION, Golden
from shoal.tensors import Array

_MOST_ROWS: Final = 512
CORRECTED_OVER = 1e-3  # nats: below, correcting is not worth its time
RENEWED_OVER = 0.5  # of the bound: from there it is seen whether what was held is to blame
RENEWED_IS_BETTER = 0.5  # of the gap before: else it is not
_FEWEST_ROWS: Final = 64
_LOW, _INTEGER, _GOLDEN = "low/", "integer/", "golden/"  # beginnings of names in the state
_PRODUCTS: Final = 500_000_000  # multiplications that calibration may cost: about 20 ms


@dataclass(frozen=True, slots=True, eq=False)
class Quantized:
    """A policy that is ready to be published.

    Attributes:
        precision: Names the graph in `Quantizer.graphs`.
        tensors: Every initializer of that graph.
        golden: Inputs, and what this machine's onnxruntime gives for them.
        kl_quantization: Nats, the mean of KL(as trained || as published) over the calibration rows.
        refused: KL of each precision that was tried before and was over the bound.
        agreement: Part of the calibration rows where both choose the same greedy action.
    """

    precision: Precision
    tensors: Mapping[str, Array]
    golden: Golden
    kl_quantization: float
    refused: Mapping[str, float]
    agreement: float


@dataclass(frozen=True, slots=True, eq=False)
class _Tried:
    """Tensors that were run over the calibration rows."""

    tensors: dict[str, Array]
    session: ort.InferenceSession
    distribution: np.ndarray[tuple[int, int], np.dtype[np.float32]]
    gap: Gap


class Quantizer:
    """Quantizes versions of one policy.

    Rounded weights err by a constant too, as hidden activations are never negative. Where the gap
    is not small, the mean error of each output over the sample is taken out of the last bias
    (Nagel et al. 2019, "Data-free quantization through weight equalization and bias correction",
    section 4.2, with data).

    >>> quantizer = Quantizer(policy)
    >>> quantized = quantizer.quantize(policy, sample)
    >>> graph = quantizer.graphs[quantized.precision]

    Attributes:
        graphs: The weightless graph of each precision.
        calibration_rows: At most so many rows of a sample are used: fewer for a costly network.
    """

    def __init__(self, policy: Policy, *, kl_max: float = 0.01, dead_zone: float = 0.0) -> None:
        """Builds the graphs.

        Args:
            policy: Says the architecture; its weights do not matter yet.
            kl_max: Quantization gap, in nats, over which the next precision is tried.
            dead_zone: How far beyond its cell a weight goes before its integer moves, in steps;
                integers and ranges are made anew where the gap nears `kl_max` for them. Of a policy
                whose training is quantization-aware integers are rounded all the same, as training
                rounds them.
        """
        self.graphs: dict[Precision, bytes] = {
            precision: build_graph(policy, precision) for precision in PRECISIONS
        }
        self.calibration_rows = min(
            _MOST_ROWS, max(_FEWEST_ROWS, _PRODUCTS // policy.plan.products)
        )
        self._kl_max = kl_max
        self._ranges = Ranges()
        self._golden = GoldenInputs()
        self._zone = DeadZone(0.0 if policy.ranges is not None else dead_zone)
        self._noise: NDArray[np.float32] = np.zeros((0, policy.action.noise_width), np.float32)

    @torch.no_grad()
    def quantize(self, policy: Policy, sample: Sample) -> Quantized:
        """Makes the tensors of a version and runs them.

        Args:
            policy: What was trained. Where its training is quantization-aware it takes over the
                ranges, and the gap is that from what it then computes.
            sample: Recent observations and states: they set the ranges and measure the gap.

        Raises:
            PolicyRejected: Weights or outputs are not finite (reason `non_finite`).
        """
        if not _finite(policy):
            raise PolicyRejected(
                "non_finite", "the policy has weights that are NaN or infinite: not published"
            )
        rows = sample.thin(self.calibration_rows)
        ranges = Ranges(self._ranges.held, self._ranges.low)
        zone = DeadZone(self._zone.width, self._zone.held)
        trained = calibrate(policy, rows, ranges)
        if not bool(trained.isfinite().all()):
            raise PolicyRejected(
                "non_finite", "the policy's outputs are NaN or infinite: not published"
            )
        tensors = make_tensors(policy, "int8", ranges, zone=zone)
        held = bool(self._ranges.held)
        self._ranges, self._zone = ranges, zone
        if policy.ranges is not None:
            policy.ranges.hold(ranges.held)
            trained = answer(policy, rows)
        return self._first_within_bound(policy, rows, trained, tensors, held=held)

    def state_dict(self) -> dict[str, Tensor]:
        """The ranges, integers and golden inputs that are held, by name."""
        held = {name: each.clone() for name, each in self._ranges.held.items()}
        held |= {f"{_LOW}{name}": each.clone() for name, each in self._ranges.low.items()}
        for name, each in self._zone.held.items():
            dtype = torch.int32 if name.startswith("bias.") else torch.int8
            held[f"{_INTEGER}{name}"] = each.to(dtype)
        for name, array in self._golden.state().items():
            held[f"{_GOLDEN}{name}"] = torch.from_numpy(array.copy())
        return held

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Goes on where an earlier process was, so that equal weights give equal bytes."""
        plain = {name: each.clone() for name, each in state.items() if "/" not in name}
        self._ranges = Ranges(plain, _under(_LOW, state))
        integers = _under(_INTEGER, state)
        wide = {
            name: each.double() if name.startswith("bias.") else each.float()
            for name, each in integers.items()
        }
        self._zone = DeadZone(self._zone.width, wide)
        golden = _under(_GOLDEN, state)
        self._golden.restore({name: each.numpy() for name, each in golden.items()})

    def _noise_for(self, policy: Policy, rows: int) -> NDArray[np.float32]:
        if len(self._noise) != rows:
            self._noise = noise_block(bytes(RUN_ID_BYTES), 0, 1, rows, policy.spec.action)[0]
        return self._noise

    def _first_within_bound(
        self,
        policy: Policy,
        rows: Sample,
        trained: Tensor,
        tensors: dict[str, Array],
        *,
        held: bool,
    ) -> Quantized:
        noise = self._noise_for(policy, len(rows.observations))
        given = feeds(policy.observation, rows.observations, noise, rows.states)
        refused: dict[str, float] = {}
        for precision in PRECISIONS:
            if precision != "int8":
                tensors = self._make(policy, precision)
            tried = self._try(policy, precision, tensors, given, trained)
            if precision == "int8" and held:
                tried = self._renewed(policy, rows, given, trained, tried)
            kl, last = tried.gap.kl, precision == PRECISIONS[-1]
            if kl <= self._kl_max or (last and math.isfinite(kl)):
                golden = self._golden.record(
                    policy, tried.session, rows, noise, tried.distribution, tried.tensors
                )
                return Quantized(precision, tried.tensors, golden, kl, refused, tried.gap.agreement)
            refused[precision] = kl
        raise PolicyRejected("non_finite", "the policy's log-probabilities are NaN: not published")

    def _renewed(
        self,
        policy: Policy,
        rows: Sample,
        given: Mapping[str, Array],
        trained: Tensor,
        tried: _Tried,
    ) -> _Tried:
        """What was tried, or where its gap is wide and it helps, what owes nothing to before.

        All integers are rounded; if that is not enough, in ranges no wider than the sample needs.
        """
        bound = self._kl_max
        if tried.gap.kl <= RENEWED_OVER * bound or policy.ranges is not None:
            return tried
        ranges, zone = self._ranges, self._zone
        for renewed in (ranges, fresh_ranges(policy, rows)):
            self._ranges, self._zone = renewed, DeadZone(zone.width)
            afresh = self._try(policy, "int8", self._make(policy, "int8"), given, trained)
            if afresh.gap.kl <= RENEWED_IS_BETTER * tried.gap.kl:
                return afresh
            if afresh.gap.kl <= bound < tried.gap.kl:
                return afresh
        # The gap has other causes, and making anew costs bytes.
        self._ranges, self._zone = ranges, zone
        return tried

    def _make(
        self, policy: Policy, precision: Precision, shift: Tensor | None = None
    ) -> dict[str, Array]:
        return make_tensors(policy, precision, self._ranges, shift=shift, zone=self._zone)

    def _try(
        self,
        policy: Policy,
        precision: Precision,
        tensors: dict[str, Array],
        given: Mapping[str, Array],
        trained: Tensor,
    ) -> _Tried:
        """Runs it, and once more without its mean error where that is worth it."""
        tried = self._run(policy, precision, tensors, given, trained)
        correctable = policy.ranges is None and precision != PRECISIONS[-1]
        if not correctable or tried.gap.kl <= CORRECTED_OVER:
            return tried
        error = (trained - torch.from_numpy(tried.distribution)).mean(0)
        tensors = self._make(policy, precision, error[head_columns(policy)])
        return self._run(policy, precision, tensors, given, trained)

    def _run(
        self,
        policy: Policy,
        precision: Precision,
        tensors: dict[str, Array],
        given: Mapping[str, Array],
        trained: Tensor,
    ) -> _Tried:
        session = open_session(self.graphs[precision], tensors)
        distribution: np.ndarray[tuple[int, int], np.dtype[np.float32]]
        (distribution,) = session.run([DISTRIBUTION], given)
        gap = measure(policy, trained, torch.from_numpy(distribution))
        return _Tried(tensors, session, distribution, gap)


def _under(prefix: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): each.clone()
        for name, each in state.items()
        if name.startswith(prefix)
    }


def head_columns(policy: Policy) -> list[int]:
    """Where the outputs of the last layer lie among the parameters of the distribution."""
    if policy.head != "sample":
        return list(range(policy.distribution.parameters))
    columns: list[int] = []
    start = 0
    for choice in policy.action.choices:
        columns += range(start, start + choice.noise_width)
        start += choice.noise_width * (1 if choice.values else 2)  # a Box has deviations behind
    return columns


def _finite(policy: Policy) -> bool:
    """By sums, which no NaN and no infinity leaves finite."""
    tensors = (t for t in (*policy.parameters(), *policy.buffers()) if t.is_floating_point())
    return all(_finite_sum(tensor.detach()) for tensor in tensors)


def _finite_sum(tensor: Tensor) -> bool:
    if math.isfinite(float(tensor.sum())):
        return True
    return math.isfinite(float(tensor.sum(dtype=torch.float64)))  # float32 may overflow
