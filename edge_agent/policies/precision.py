"""Which form of a policy acts on this device: int8 as it was published, or a twin of it.

Measured, not believed: int8 is slower than fp32 on some processors and for some networks, and with
dynamic ranges faster than either for others. Whatever is wrong with a twin, the int8 policy acts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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

Wanted = Literal["int8", "fp32", "int8_dynamic", "auto"]
INT8, FP32, DYNAMIC = "int8", "fp32", "int8_dynamic"
TWINS: Final[Mapping[str, str]] = {FP32: "float twin", DYNAMIC: "dynamic twin"}
"""The forms that a device makes itself, from the most faithful on, and what they are called."""
FASTER_BY: Final = 0.9
"""A twin acts when it takes less than this part of the time: as published unless it pays."""

DecisionTimes = Callable[[Sequence[Policy], Golden, int], Sequence[float]]
"""Microseconds of one decision of each policy, on golden rows, for so many environments."""

log = get_logger("precision")


@dataclass(frozen=True, slots=True)
class Choice:
    """What acts, and why.

    Attributes:
        precision: Of what acts.
        reason: One line for people.
        times_us: Time of one decision for all environments, in µs, by precision; without those
            that were not measured.
    """

    precision: str
    reason: str
    times_us: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Proven:
    """An int8 policy that was proven, and what its twins are made from and held against."""

    policy: Policy
    tensors: Mapping[str, Array]
    golden: Golden


_Architecture = tuple[bytes, bytes]  # digests of the int8 graph and of the fp32 graph


class PrecisionChooser:
    """Builds twins, and chooses by measurement. Never on the control thread.

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
        times_of: DecisionTimes | None = None,
    ) -> None:
        """Nothing is chosen yet.

        Args:
            wanted: `int8`: as published. `fp32`: the float twin. `int8_dynamic`: the dynamic twin.
                `auto`: the fastest.
            spec: The spaces of the device's environment.
            envs: N, for how many a decision is measured.
            events: Where it is told; None: in the log alone.
            times_of: Measures; None: on this machine.
        """
        self.choice = Choice("", "no policy acts yet")
        self._wanted = wanted
        self._spec = spec
        self._envs = envs
        self._events = events
        self._times_of = times_of or _measured
        self._chosen: dict[_Architecture, Choice] = {}
        self._trouble = ""

    def wants_twin(self, manifest: Manifest) -> bool:
        """Whether a twin of a version is to be built: it may act."""
        if self._wanted == INT8 or not manifest.float_graph_digest:
            return False
        known = self._chosen.get(_architecture(manifest))
        return known is None or known.precision != INT8

    def knows(self, manifest: Manifest) -> bool:
        """Whether nothing is left to be measured for a version: its twin acts as soon as built."""
        return self._wanted in TWINS or _architecture(manifest) in self._chosen

    def as_published(self, policy: Policy) -> None:
        """Notes that a policy acts as it was published."""
        manifest = policy.manifest
        if self._wanted == INT8 or manifest.precision != INT8:
            self.choice = Choice(manifest.precision, "as published")
        elif not manifest.float_graph_digest:
            self._fall_back(policy, FP32, "missing", "it was published without a float twin")
        else:
            known = self._chosen.get(_architecture(manifest))
            self.choice = known or Choice(INT8, "its twins are not proven yet")

    def choose(self, proven: Proven, float_graph: bytes) -> Policy:
        """Builds a twin of a version and proves it; of a new architecture each, and measures them.

        Returns:
            What is to act: a twin, or after whatever problem the policy as published.
        """
        policy = proven.policy
        known = self._chosen.get(_architecture(policy.manifest))
        wanted = self._wanted if known is None else known.precision
        twins, problems = {}, {}
        for precision in [twin for twin in TWINS if wanted in (twin, "auto")]:
            try:
                twins[precision] = self._twin(proven, float_graph, precision)
            # onnxruntime raises classes of its own without a shared base.
            except Exception as error:  # noqa: BLE001 a border: int8 acts on
                problems[precision] = error
        # What is made of the fp32 graph is not to be had without it, and tried again.
        for precision in (wanted, FP32):
            if precision in problems:
                return self._give_up(policy, precision, problems[precision])
        self._trouble = ""
        self.choice = known or self._chosen_of(proven, twins, problems)
        return twins.get(self.choice.precision, policy)

    def give_up(self, policy: Policy, error: BaseException) -> Policy:
        """Has a policy act as published, since no twin of it can be had; says why.

        Returns:
            The policy.
        """
        return self._give_up(policy, self._wanted, error)

    def condemn(self, twin: Policy) -> None:
        """Notes that a twin failed while acting: none of this architecture acts any more."""
        choice = Choice(INT8, f"the {TWINS[twin.precision]} failed while acting")
        self._chosen[_architecture(twin.manifest)] = self.choice = choice

    def _twin(self, proven: Proven, float_graph: bytes, precision: str) -> Policy:
        """A twin that was proven."""
        policy = proven.policy
        make = policy.twin if precision == FP32 else policy.dynamic_twin
        twin = make(float_graph, proven.tensors)
        check_ports(twin, self._spec)
        action = ActionLayout.of(self._spec.action)
        check_parity(policy, twin, proven.golden, action, envs=self._envs)
        return twin

    def _chosen_of(
        self, proven: Proven, twins: Mapping[str, Policy], problems: Mapping[str, Exception]
    ) -> Choice:
        """What acts of an architecture from now on."""
        choice = Choice(self._wanted, "as configured")
        if self._wanted == "auto":
            forms = {INT8: proven.policy, **twins}
            times_us = self._times_of(list(forms.values()), proven.golden, self._envs)
            choice = fastest_of(dict(zip(forms, times_us, strict=True)), envs=self._envs)
        for precision, error in problems.items():
            reason = f"{choice.reason}; not the {TWINS[precision]}: {_first_line(error)}"
            choice = replace(choice, reason=reason)
        self._chosen[_architecture(proven.policy.manifest)] = choice
        self._tell(
            pb.SEVERITY_INFO,
            "precision_chosen",
            f"{choice.precision} acts, {choice.reason}",
            precision=choice.precision,
            **{f"{name}_us": round(us, 2) for name, us in choice.times_us.items()},
        )
        return choice

    def _give_up(self, policy: Policy, precision: str, error: BaseException) -> Policy:
        self._fall_back(policy, precision, type(error).__name__, _first_line(error))
        return policy

    def _fall_back(self, policy: Policy, precision: str, kind: str, problem: str) -> None:
        """Once for each new kind of trouble, not at every version."""
        known = self._chosen.get(_architecture(policy.manifest), Choice("", ""))
        self.choice = replace(known, precision=policy.precision, reason=problem)
        if kind != self._trouble:
            self._trouble = kind
            name = "dynamic_twin_unusable" if precision == DYNAMIC else "float_twin_unusable"
            self._tell(
                pb.SEVERITY_WARNING,
                name,
                f"policy {policy.version} acts in {policy.precision}: {problem}",
                policy_version=policy.version,
            )

    def _tell(self, severity: pb.Severity, name: str, message: str, **fields: str | float) -> None:
        if self._events is None:
            log.info(name, message=message, **fields)
        else:
            self._events.emit(severity, name, message, **fields)


def fastest_of(times_us: Mapping[str, float], *, envs: int) -> Choice:
    """int8, unless a twin is faster by enough to be worth it; likewise the dynamic over the float.

    Args:
        times_us: Of one decision, by precision; int8 is one of them.
        envs: N, for how many it was measured.
    """
    precision = INT8
    for twin in TWINS:
        if twin in times_us and times_us[twin] < FASTER_BY * times_us[precision]:
            precision = twin
    measured = ", ".join(f"{name} {us:.1f} µs" for name, us in times_us.items())
    return Choice(precision, f"measured for {envs} environments: {measured}", dict(times_us))


def _measured(policies: Sequence[Policy], golden: Golden, envs: int) -> Sequence[float]:
    return decision_us(policies, golden, envs, time.perf_counter)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [""])[0] or type(error).__name__


def _architecture(manifest: Manifest) -> _Architecture:
    return manifest.graph_digest, manifest.float_graph_digest
