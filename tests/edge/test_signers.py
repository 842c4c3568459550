from __future__ import annotations

from pathlib import Path

from policy_publisher import Publisher

from edge_agent.checks.signers import signers
from edge_agent.policies.policy_store import PolicyStore


def test_a_check_says_whose_policies_are_taken_and_from_which_generation_on(tmp_path: Path) -> None:
    publisher = Publisher()

    def said() -> str:
        return signers(tmp_path, fleet=publisher.fleet, public_key=publisher.public_key)

    assert said().endswith("and of its delegates")
    with PolicyStore(
        tmp_path, fleet=publisher.fleet, public_key=publisher.public_key, spec=publisher.spec
    ) as store:
        published = publisher.delegating(3).publish(1)
        store.offer(published.bundle, published.fetch)
    assert said() == (
        f"takes policies of key {publisher.public_key.hex()[:12]} and of its delegates "
        "from generation 3 on"
    )
