"""What a device decides is, bit for bit, what the learner gets from the same graph."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from cloud_learner.config import NetworkConfig
from cloud_learner.downlink.policy_log import PolicyLog
from cloud_learner.models.policy import build_policy
from cloud_learner.quantization.quantize import Quantizer
from cloud_learner.quantization.sample import Sample
from cloud_learner.quantization.session import open_session
from edge_agent.config import EnvConfig
from edge_agent.environments.env import make_env
from edge_agent.policies.policy_store import PolicyStore
from shoal.layout import ObservationLayout
from shoal.noise import noise_block
from shoal.policy import ACTION, LOG_PROB, NOISE, OBSERVATION

ROWS = 256


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Acrobot-v1", "Pendulum-v1"])
def test_a_device_decides_bit_for_bit_like_the_learners_own_run_of_the_graph(
    env_id: str, tmp_path: Path
) -> None:
    with make_env(EnvConfig(env_id)) as environments:
        spec = environments.spec
    rng = np.random.default_rng(5)
    observations = rng.normal(size=(ROWS, *ObservationLayout.of(spec.observation).shape)).astype(
        np.float32
    )
    sample = Sample(observations, np.zeros((ROWS, 0), np.float32))
    noise = noise_block(bytes(range(16)), 7, 1, ROWS, spec.action)[0]
    key = Ed25519PrivateKey.generate()
    with (
        PolicyLog(tmp_path / "log", key, "demo") as log,
        PolicyStore(
            tmp_path / "store",
            fleet="demo",
            public_key=key.public_key().public_bytes_raw(),
            spec=spec,
        ) as store,
    ):
        for seed in range(3):
            trained = build_policy(spec, NetworkConfig(), head="sample", seed=seed)
            quantizer = Quantizer(trained)
            quantized = quantizer.quantize(trained, sample)
            graph = quantizer.graphs[quantized.precision]
            published = log.publish(
                quantized, graph=graph, updates=seed, spec_fingerprint=spec.fingerprint
            )
            policy = store.offer(published.bundle, lambda digest: log.graph(digest) or b"")
            assert quantized.precision == "int8"
            assert policy.digest == published.digest
            ours = policy.act(observations, noise)
            actions, log_probs = open_session(graph, quantized.tensors).run(
                [ACTION, LOG_PROB], {OBSERVATION: observations, NOISE: noise}
            )
            np.testing.assert_array_equal(ours.actions, actions)
            np.testing.assert_array_equal(ours.log_probs, log_probs)
