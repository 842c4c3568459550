"""int8 as published or a twin of it: the fastest acts, and int8 whenever anything is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st
from networks import make_case, of_kind
from twin_devices import FLEET, RUN, Device, FakeTimes, Learner

from cloud_learner.downlink.published import Circumstances, sign_policy
from cloud_learner.quantization.quantize import Quantizer
from edge_agent.acting.actor import Actor
from edge_agent.policies.policy import Policy
from edge_agent.policies.policy_store import PolicyStore
from edge_agent.policies.precision import FASTER_BY, PrecisionChooser, Wanted, fastest_of
from shoal import float_twin
from shoal.policy import policy_digest
from shoal.spaces import Discrete, unbounded


@pytest.fixture
def learner() -> Learner:
    return Learner()


@pytest.fixture
def device(tmp_path: Path, learner: Learner) -> Iterator[Device]:
    made = Device(tmp_path / "policies", learner)
    yield made
    made.stop()


FP32_FASTER = (10.0, 5.0)
INT8_FASTER = (5.0, 10.0)
DYNAMIC_FASTER = (10.0, 20.0, 7.0)


def precision_of(store: PolicyStore) -> str:
    return "" if store.current is None else store.current.precision


def test_without_being_asked_a_device_acts_with_what_was_published(
    device: Device, learner: Learner
) -> None:
    store = device.start("int8")
    published = learner.publish(1)
    policy = store.offer(published.bundle, learner.fetch)
    assert (policy.precision, policy.digest) == ("int8", published.manifest.digest)
    assert learner.asked == [published.manifest.graph_digest]
    assert (device.chooser.choice.precision, device.chooser.choice.reason) == (
        "int8",
        "as published",
    )


def test_auto_acts_with_the_faster_and_says_what_it_measured(
    device: Device, learner: Learner
) -> None:
    store = device.start("auto", FakeTimes(*FP32_FASTER))
    published = learner.publish(1)
    policy = store.offer(published.bundle, learner.fetch)
    assert store.current is policy
    assert policy.precision == "fp32"
    choice = device.chooser.choice
    assert choice.precision == "fp32"
    assert choice.times_us == {"int8": 10.0, "fp32": 5.0, "int8_dynamic": 1000.0}
    (event,) = device.said()
    assert event[0] == "precision_chosen"
    assert "fp32 acts" in event[1]


def test_auto_keeps_int8_where_it_is_faster(device: Device, learner: Learner) -> None:
    store = device.start("auto", FakeTimes(*INT8_FASTER))
    store.offer(learner.publish(1).bundle, learner.fetch)
    assert precision_of(store) == "int8"
    asked = len(learner.asked)
    store.offer(learner.publish(2).bundle, learner.fetch)
    assert (precision_of(store), len(learner.asked)) == ("int8", asked)


def test_a_little_faster_is_not_enough() -> None:
    enough = 10.0 * FASTER_BY
    for us, precision in ((enough + 0.01, "int8"), (enough - 0.01, "fp32")):
        assert fastest_of({"int8": 10.0, "fp32": us}, envs=1).precision == precision
    for us, precision in ((enough + 0.01, "fp32"), (enough - 0.01, "int8_dynamic")):
        times_us = {"int8": 90.0, "fp32": 10.0, "int8_dynamic": us}
        assert fastest_of(times_us, envs=1).precision == precision


@given(times_us=st.tuples(*[st.floats(0.1, 1e6)] * 3))
def test_what_acts_is_never_much_slower_than_the_fastest(
    times_us: tuple[float, float, float],
) -> None:
    by_name = dict(zip(("int8", "fp32", "int8_dynamic"), times_us, strict=True))
    chosen = fastest_of(by_name, envs=1)
    assert by_name[chosen.precision] <= min(times_us) / FASTER_BY**2
    assert by_name[chosen.precision] <= by_name["int8"]
    assert chosen.times_us == by_name


def test_auto_acts_with_dynamic_ranges_where_they_are_the_fastest(
    device: Device, learner: Learner
) -> None:
    times = FakeTimes(*DYNAMIC_FASTER)
    store = device.start("auto", times)
    published = learner.publish(1)
    policy = store.offer(published.bundle, learner.fetch)
    assert (policy.precision, precision_of(store)) == ("int8_dynamic", "int8_dynamic")
    assert policy.digest == published.manifest.dynamic_twin_digest
    ((name, message),) = device.said()
    assert name == "precision_chosen"
    assert "int8_dynamic 7.0 µs" in message
    store.offer(learner.publish(2).bundle, learner.fetch)
    assert (precision_of(store), times.asked, device.said()) == ("int8_dynamic", 1, [])


def test_dynamic_ranges_that_decide_otherwise_leave_the_others_to_choose_from(
    device: Device, learner: Learner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unlike(self: Policy, float_graph: bytes, tensors: Any) -> Policy:  # noqa: ANN401
        last = max(name for name in tensors if name.startswith("weight.") and name[-1].isdigit())
        return right(self, float_graph, {**tensors, last: -tensors[last]})

    right = Policy.dynamic_twin
    monkeypatch.setattr(Policy, "dynamic_twin", unlike)
    for times, precision in ((DYNAMIC_FASTER, "int8"), ((10.0, 8.0, 1.0), "fp32")):
        learner.key = Ed25519PrivateKey.generate()
        store = device.start("auto", FakeTimes(*times))
        store.offer(learner.publish(1).bundle, learner.fetch)
        assert precision_of(store) == precision
        ((name, message),) = device.said()
        assert name == "precision_chosen"
        assert "not the dynamic twin: it does not decide like int8" in message


def test_dynamic_ranges_act_where_they_are_asked_for_by_name(
    device: Device, learner: Learner
) -> None:
    store = device.start("int8_dynamic")
    assert store.offer(learner.publish(1).bundle, learner.fetch).precision == "int8_dynamic"
    assert store.offer(learner.publish(2).bundle, learner.fetch).precision == "int8_dynamic"
    store = device.start("int8_dynamic")  # without the network
    assert precision_of(store) == "int8_dynamic"
    store.offer(learner.publish(3, spoil=True).bundle, learner.fetch)
    assert precision_of(store) == "int8"
    assert [name for name, _ in device.said()][-1] == "dynamic_twin_unusable"


def test_it_is_measured_once_for_an_architecture_however_the_next_version_would_time(
    device: Device, learner: Learner
) -> None:
    times = FakeTimes(*FP32_FASTER)
    store = device.start("auto", times)
    store.offer(learner.publish(1).bundle, learner.fetch)
    times.times_us = {"int8": 1.0, "fp32": 9.0, "int8_dynamic": 1.0}
    for version in range(2, 6):
        store.offer(learner.publish(version).bundle, learner.fetch)
        assert precision_of(store) == "fp32"
    assert times.asked == 1
    assert len(device.said()) == 1


def test_the_twin_of_a_known_architecture_acts_without_int8_in_between(
    device: Device, learner: Learner
) -> None:
    store = device.start("fp32")
    became: list[str] = []
    become = store._become

    def noted(policy: Policy | None) -> None:
        became.append("" if policy is None else policy.precision)
        become(policy)

    store._become = noted  # type: ignore[method-assign]
    store.offer(learner.publish(1).bundle, learner.fetch)
    assert became == ["int8", "fp32"]  # acting does not wait for a graph to be fetched
    store.offer(learner.publish(2).bundle, learner.fetch)
    assert became == ["int8", "fp32", "fp32"]


def test_a_chunk_names_the_digest_of_what_really_acted(
    device: Device, learner: Learner, make_copy: type[Any], make_environments: Callable[..., Any]
) -> None:
    published = learner.publish(1)
    manifest = published.manifest
    with make_environments(make_copy(), make_copy()) as environments:
        for wanted, digest in (
            ("int8", manifest.digest),
            ("fp32", policy_digest(manifest.float_graph_digest, manifest.tensors_digest)),
            ("int8_dynamic", manifest.dynamic_twin_digest),
        ):
            store = device.start(wanted)  # type: ignore[arg-type]
            assert store.lacks_twin == (wanted == "fp32")
            policy = store.offer(published.bundle, learner.fetch)
            chunk = Actor(environments, run_id=RUN, chunk_steps=4).rollout(policy)
            assert (chunk.policy_version, chunk.policy_digest) == (1, digest)
    assert len({manifest.digest, *manifest.twin_digests}) == 3


def test_the_twin_acts_again_after_a_restart_without_the_network(
    device: Device, learner: Learner
) -> None:
    modes: tuple[Wanted, ...] = ("fp32", "auto")
    for wanted in modes:
        store = device.start("fp32")
        store.offer(learner.publish(1).bundle, learner.fetch)
        store = device.start(wanted, FakeTimes(*FP32_FASTER))
        assert precision_of(store) == "fp32"
    assert len(learner.asked) == 2


def test_a_graph_that_cannot_be_fetched_leaves_int8_acting_and_is_tried_again(
    device: Device, learner: Learner
) -> None:
    store = device.start("fp32")
    published = learner.publish(1)

    def fetch(digest: bytes) -> bytes:
        if digest == published.manifest.float_graph_digest:
            raise ConnectionError("the server went away")
        return learner.fetch(digest)

    assert store.offer(published.bundle, fetch).precision == "int8"
    assert precision_of(store) == "int8"
    assert device.said() == [("float_twin_unusable", "policy 1 acts in int8: the server went away")]
    assert device.chooser.choice.reason == "the server went away"
    assert store.offer(learner.publish(2).bundle, learner.fetch).precision == "fp32"


def test_a_twin_that_decides_otherwise_does_not_act(
    device: Device, learner: Learner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def turned(*given: Any) -> Any:  # noqa: ANN401
        made = right(*given)
        last = max(name for name in made if name.startswith("weight."))
        return made | {last: -made[last]}

    right = float_twin.float_tensors
    monkeypatch.setattr("edge_agent.policies.policy.float_tensors", turned)
    store = device.start("auto", FakeTimes(*FP32_FASTER))
    policy = store.offer(learner.publish(1).bundle, learner.fetch)
    assert (policy.precision, precision_of(store)) == ("int8", "int8")
    ((name, message),) = device.said()
    assert name == "float_twin_unusable"
    assert "golden rows" in message
    store.offer(learner.publish(2).bundle, learner.fetch)
    assert device.said() == []  # told once
    monkeypatch.setattr("edge_agent.policies.policy.float_tensors", right)
    assert store.offer(learner.publish(3).bundle, learner.fetch).precision == "fp32"


def test_a_twin_whose_log_probabilities_are_off_does_not_act(
    device: Device, learner: Learner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sharpened(*given: Any) -> Any:  # noqa: ANN401
        made = right(*given)
        last = max(made)[-1]  # weight.2
        return made | {f"{kind}.{last}": 10 * made[f"{kind}.{last}"] for kind in ("weight", "bias")}

    right = float_twin.float_tensors
    monkeypatch.setattr("edge_agent.policies.policy.float_tensors", sharpened)
    store = device.start("fp32")
    store.offer(learner.publish(1).bundle, learner.fetch)
    assert precision_of(store) == "int8"
    assert "log-probabilities" in device.said()[0][1]


def test_a_graph_that_cannot_be_loaded_leaves_int8_acting(device: Device, learner: Learner) -> None:
    store = device.start("fp32")
    store.offer(learner.publish(1, spoil=True).bundle, learner.fetch)
    assert precision_of(store) == "int8"
    assert device.said()[0][0] == "float_twin_unusable"


def test_a_version_without_a_twin_acts_as_it_is_and_the_device_says_so(
    device: Device, learner: Learner
) -> None:
    store = device.start("auto")
    store.offer(learner.publish(1, twin=False).bundle, learner.fetch)
    assert precision_of(store) == "int8"
    assert "without a float twin" in device.said()[0][1]


@pytest.mark.parametrize(
    ("wanted", "name"), [("fp32", "float twin"), ("int8_dynamic", "dynamic twin")]
)
def test_a_twin_that_fails_while_acting_hands_over_to_its_own_int8_form(
    device: Device, learner: Learner, wanted: Wanted, name: str
) -> None:
    store = device.start(wanted)
    twin = store.offer(learner.publish(1).bundle, learner.fetch)
    instead = store.condemn(twin, "non_finite")
    assert instead is not None
    assert (instead.version, instead.precision) == (1, "int8")
    assert store.rejections["non_finite"] == 1
    store.offer(learner.publish(2).bundle, learner.fetch)
    assert precision_of(store) == "int8"
    assert device.chooser.choice.reason == f"the {name} failed while acting"


def test_the_graphs_of_twins_are_kept_as_long_as_their_versions(
    device: Device, learner: Learner, tmp_path: Path
) -> None:
    store = device.start("fp32")
    for version in range(1, 5):
        store.offer(learner.publish(version).bundle, learner.fetch)
    names = {path.stem for path in tmp_path.rglob("*.onnx")}
    assert names == {digest.hex() for digest in learner.graphs}


@pytest.mark.parametrize("wanted", ["fp32", "int8_dynamic"])
def test_a_policy_with_memory_has_twins_that_remember(wanted: Wanted, tmp_path: Path) -> None:
    case = make_case(unbounded((4,)), Discrete(2), of_kind("lstm"))
    quantizer = Quantizer(case.policy, kl_max=np.inf)
    learner, graph = Learner(quantizer), quantizer.graphs["int8"]
    learner.float_graph = quantizer.graphs["fp32"]
    circumstances = Circumstances(FLEET, 1, 1, case.spec.fingerprint, 0, "publish")
    published = sign_policy(
        quantizer.quantize(case.policy, case.sample),
        graph,
        circumstances,
        learner.key,
        float_graph=learner.float_graph,
    )
    chooser = PrecisionChooser(wanted, spec=case.spec, envs=3)
    with PolicyStore(
        tmp_path,
        fleet=FLEET,
        public_key=learner.key.public_key().public_bytes_raw(),
        spec=case.spec,
        chooser=chooser,
    ) as store:
        policy = store.offer(published.bundle, learner.fetch)
    assert (policy.precision, policy.memory) == (wanted, 16)
