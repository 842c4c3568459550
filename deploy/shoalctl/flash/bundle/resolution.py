"""Which wheels belong together: pip finds them, and what it found is checked for the target.

pip looks at environment markers with the Python that runs it, whatever platform it was told. So
what it brought is walked again from the root, with the target's markers: what is missing is asked
for, and what isn't needed there stays away.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from packaging.requirements import Requirement

from shoal.errors import ConfigError
from shoalctl.flash.bundle.target import Target
from shoalctl.flash.bundle.wheel import Wheel, distribution_name

NEVER = frozenset({"torch", "tensorflow", "jax", "jaxlib"})
"""What makes an agent ten times as large; it acts with onnxruntime."""


@dataclass(frozen=True, slots=True)
class Closure:
    """Wheels, and what they need that is not among them.

    Attributes:
        wheels: What is needed, by name.
        missing: What else is needed.
    """

    wheels: Mapping[str, Wheel]
    missing: tuple[Requirement, ...]


def closure(roots: Iterable[Requirement], found: Iterable[Wheel], target: Target) -> Closure:
    """Walks from the roots to everything that is needed on a target.

    Args:
        roots: Where to begin.
        found: Wheels there are, one for each name.
        target: For whom.

    Raises:
        ConfigError: A wheel doesn't run there, versions contradict each other, or something that a
            device never needs is needed.
    """
    known = {wheel.name: wheel for wheel in found}
    taken: dict[str, Wheel] = {}
    missing: dict[str, Requirement] = {}
    seen: set[tuple[str, str]] = set()
    waiting = [(requirement, "what was asked for") for requirement in roots]
    while waiting:
        requirement, source = waiting.pop()
        name = distribution_name(requirement.name)
        if name in NEVER:
            raise ConfigError(
                f"{source} needs {name}, which an agent does without: let the environment import "
                "it nowhere, or move it to an extra"
            )
        wheel = known.get(name)
        if wheel is None:
            missing[str(requirement)] = requirement
            continue
        if not requirement.specifier.contains(wheel.version, prereleases=True):
            raise ConfigError(
                f"{source} needs {requirement}, and {name} {wheel.version} is what there is: "
                "ask for versions that agree"
            )
        taken[name] = wheel
        wheel.check_fits(target)
        for extra in ("", *requirement.extras):
            if (name, extra) not in seen:
                seen.add((name, extra))
                extras = frozenset({extra} - {""})
                needs = wheel.needs(target, extras)
                waiting.extend((need, f"{wheel.name} {wheel.version}") for need in needs)
    return Closure(taken, tuple(missing.values()))
