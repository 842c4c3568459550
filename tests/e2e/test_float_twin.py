"""From the learner's weights to a chunk that is admitted: an int8 policy that acts as a twin."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from cloud_learner.config import NetworkConfig
from cloud_learner.downlink.policy_log import PolicyLog
from cloud_learner.journal.audit import Disposition
from cloud_learner.journal.reproduce import RunnablePolicy, recompute
from cloud_learner.models.policy import build_policy
from cloud_learner.quantization.quantize import Quantizer
from cloud_learner.quantization.sample import probe_sample
from cloud_learner.quantization.session import open_dynamic_twin, open_twin
from cloud_learner.uplink.admission import KnownVersion, KnownVersions, Standard, decide
from edge_agent.acting.actor import Actor
from edge_agent.config import EnvConfig
from edge_agent.environments.env import make_env
from edge_agent.policies.policy_store import PolicyStore
from edge_agent.policies.precision import PrecisionChooser, Wanted
from shoal.policy import decode_bundle
from shoal.tensors import decode_tensors
from shoal.trajectory import decode_chunk, encode_chunk

RUN = bytes(range(16))


@pytest.mark.parametrize("wanted", ["fp32", "int8_dynamic", "auto"])
def test_a_device_acts_with_what_it_chose_and_the_learner_takes_it_and_makes_it_again(
    wanted: Wanted, tmp_path: Path
) -> None:
    key = Ed25519PrivateKey.generate()
    with make_env(EnvConfig("CartPole-v1", num_envs=4, seed=3)) as environments:
        spec = environments.spec
        trained = build_policy(spec, NetworkConfig(), head="sample", seed=1)
        quantizer = Quantizer(trained)
        quantized = quantizer.quantize(trained, probe_sample(trained, seed=2))
        assert quantized.precision == "int8"
        chooser = PrecisionChooser(wanted, spec=spec, envs=4)
        with (
            PolicyLog(tmp_path / "log", key, "demo") as log,
            PolicyStore(
                tmp_path / "store",
                fleet="demo",
                public_key=key.public_key().public_bytes_raw(),
                spec=spec,
                chooser=chooser,
            ) as store,
        ):
            published = log.publish(
                quantized,
                graph=quantizer.graphs["int8"],
                float_graph=quantizer.graphs["fp32"],
                updates=0,
                spec_fingerprint=spec.fingerprint,
            )
            policy = store.offer(published.bundle, lambda digest: log.graph(digest) or b"")
            assert store.current is policy
        chunk = decode_chunk(
            encode_chunk(Actor(environments, run_id=RUN, chunk_steps=32).rollout(policy))
        )
    manifest, choice = published.manifest, chooser.choice
    digests = {
        "int8": manifest.digest,
        "fp32": manifest.twin_digest,
        "int8_dynamic": manifest.dynamic_twin_digest,
    }
    assert chunk.policy_digest == digests[choice.precision]
    if wanted == "auto":
        assert set(choice.times_us) == {"int8", "fp32", "int8_dynamic"}
        assert min(choice.times_us.values()) > 0

    versions = KnownVersions(lambda _: None, highest=1)
    versions.add(1, KnownVersion.of(manifest))
    verdict = decide(chunk, Standard(spec, versions, updates_now=0, max_lag=10))
    assert verdict.disposition is Disposition.TRAINED

    if choice.precision != "int8":
        opens = {"fp32": open_twin, "int8_dynamic": open_dynamic_twin}
        session = opens[choice.precision](
            quantizer.graphs["int8"],
            decode_tensors(decode_bundle(published.bundle).tensors),
            quantizer.graphs["fp32"],
        )
        names = [port.name for port in session.get_outputs()]
        again = recompute(
            chunk,
            RUN,
            spec,
            RunnablePolicy(
                digests[choice.precision],
                0.0,
                lambda feeds: dict(zip(names, session.run(names, dict(feeds)), strict=True)),
            ),
        )
        np.testing.assert_array_equal(chunk.actions, again.actions)
        np.testing.assert_array_equal(chunk.log_probs, again.log_probs)
