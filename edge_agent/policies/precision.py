"""Which form of a policy acts on this device: int8 as it was published, or its float twin.

Measured, not believed: int8 is slower than fp32 on some processors and for some networks. Whatever
is wrong with a twin, the int8 policy acts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

from edge_agent.events import Events
from edge_agent.policies.parity import check_parity, decision_us
from edge_agent.policies.policy import Policy
from edge_agent.policies.self_test import check_ports
from shoal.layout import ActionLayout
from shoal.logs import get_logger
from shoal.policy import Golden, Manifest
from shoal.spaces import EnvSpec
from shoal.tensors import Array
from shoal.v1 import device_pb2 as pb

Wanted = Literal["int8", "fp32", "auto"]
FASTER_BY: Final = 0.9
"""fp32 acts when it takes less than this part of what int8 takes: as published unless it pays."""

log = get_logger("precision")


@dataclass(frozen=True, slots=True)
class Choice:
    """What acts, and why.

    Attributes:
        precision: Of what acts.
        reason: One line for people.
        int8_us: Time of one decision for all environments, in µs; 0 where it was not measured.
        fp32_us: Of the float twin, likewise.
    """

    precision: str
    reason: str
    int8_us: float = 0.0
    fp32_us: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Proven:
    """An int8 policy that was proven, and what its twin is made from and held against."""

    policy: Policy
    tensors: Mapping[str, Array]
    golden: Golden


_Architecture = tuple[bytes, bytes]  # digests of the int8 graph and of the fp32 graph


class PrecisionChooser:
    """Builds float twins, and chooses by measurement. Never on the control thread.

    chooser = PrecisionChooser("auto", spec=spec, envs=8, events=events)
    if chooser.wants_twin(manifest):
        acting = chooser.choose(proven, float_graph)

    Attributes:
        choice: The last one; read by any thread.
    """

    def __init__(
        self,
        wanted: Wanted,
        *,
        spec: EnvSpec,
        envs: int = 1,
        events: Events | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Nothing is chosen yet.

        Args:
            wanted: `int8`: as published. `fp32`: the float twin. `auto`: the faster.
            spec: The spaces of the device's environment.
            envs: N, for how many a decision is measured.
            events: Where it is told; None: in the log alone.
            clock: Monotonic, seconds.
        """
        self.choice = Choice("", "no policy acts yet")
        self._wanted = wanted
        self._spec = spec
        self._envs = envs
        self._events = events
        self._clock = clock
        self._chosen: dict[_Architecture, Choice] = {}
        self._trouble = ""

    def wants_twin(self, manifest: Manifest) -> bool:
        """Whether the twin of a version is to be built: it may act."""
        if self._wanted == "int8" or not manifest.float_graph_digest:
            return False
        known = self._chosen.get(_architecture(manifest))
        return known is None or known.precision == "fp32"

    def knows(self, manifest: Manifest) -> bool:
        """Whether nothing is left to be measured for a version: its twin acts as soon as built."""
        return self._wanted == "fp32" or _architecture(manifest) in self._chosen

    def as_published(self, policy: Policy) -> None:
        """Notes that a policy acts as it was published."""
        manifest = policy.manifest
        if self._wanted == "int8" or manifest.precision != "int8":
            self.choice = Choice(manifest.precision, "as published")
        elif not manifest.float_graph_digest:
            self._fall_back(policy, "missing", "it was published without a float twin")
        else:
            known = self._chosen.get(_architecture(manifest))
            self.choice = known or Choice("int8", "its float twin is not proven yet")

    def choose(self, proven: Proven, float_graph: bytes) -> Policy:
        """Builds the twin of a version, proves it, and measures if it is of a new architecture.

        Returns:
            What is to act: the twin, or after whatever problem the policy as published.
        """
        policy = proven.policy
        try:
            twin = policy.twin(float_graph, proven.tensors)
            check_ports(twin, self._spec)
            check_parity(policy, twin, proven.golden, ActionLayout.of(self._spec.action))
            choice = self._measured(policy, twin, proven.golden)
        # onnxruntime raises classes of its own without a shared base.
        except Exception as error:  # noqa: BLE001 a border: int8 acts on
            return self.give_up(policy, error)
        self._trouble = ""
        self.choice = choice
        return twin if choice.precision == "fp32" else policy

    def give_up(self, policy: Policy, error: BaseException) -> Policy:
        """Has a policy act as published, since its twin cannot be had; says why.

        Returns:
            The policy.
        """
        first_line = (str(error).splitlines() or [""])[0]
        self._fall_back(policy, type(error).__name__, first_line or type(error).__name__)
        return policy

    def condemn(self, policy: Policy) -> None:
        """Notes that a twin failed while acting: no twin of this architecture acts any more."""
        choice = Choice("int8", "the float twin failed while acting")
        self._chosen[_architecture(policy.manifest)] = self.choice = choice

    def _measured(self, policy: Policy, twin: Policy, golden: Golden) -> Choice:
        key = _architecture(policy.manifest)
        known = self._chosen.get(key)
        if known is not None:
            return known
        choice = Choice("fp32", "as configured")
        if self._wanted == "auto":
            times_us = decision_us([policy, twin], golden, self._envs, self._clock)
            choice = faster_of(*times_us, envs=self._envs)
        self._chosen[key] = choice
        self._tell(
            pb.SEVERITY_INFO,
            "precision_chosen",
            f"{choice.precision} acts, {choice.reason}",
            precision=choice.precision,
            int8_us=round(choice.int8_us, 2),
            fp32_us=round(choice.fp32_us, 2),
        )
        return choice

    def _fall_back(self, policy: Policy, kind: str, problem: str) -> None:
        """Once for each new kind of trouble, not at every version."""
        known = self._chosen.get(_architecture(policy.manifest), Choice("", ""))
        self.choice = replace(known, precision=policy.precision, reason=problem)
        if kind != self._trouble:
            self._trouble = kind
            self._tell(
                pb.SEVERITY_WARNING,
                "float_twin_unusable",
                f"policy {policy.version} acts in {policy.precision}: {problem}",
                policy_version=policy.version,
            )

    def _tell(self, severity: pb.Severity, name: str, message: str, **fields: str | float) -> None:
        if self._events is None:
            log.info(name, message=message, **fields)
        else:
            self._events.emit(severity, name, message, **fields)


def faster_of(int8_us: float, fp32_us: float, *, envs: int) -> Choice:
    """int8, unless fp32 is faster by enough to be worth it."""
    precision = "fp32" if fp32_us < FASTER_BY * int8_us else "int8"
    reason = f"measured for {envs} environments: int8 {int8_us:.1f} µs, fp32 {fp32_us:.1f} µs"
    return Choice(precision, reason, int8_us, fp32_us)


def _architecture(manifest: Manifest) -> _Architecture:
    return manifest.graph_digest, manifest.float_graph_digest
