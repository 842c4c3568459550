"""What a device decides is, bit for bit, what the learner gets from the same graph."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from cloud_learner.downlink.policy_log import PolicyLog
from cloud_learner.models.actor_critic import build_model
from cloud_learner.quantization.quantize import Quantizer, open_session
from edge_agent.config import EnvConfig
from edge_agent.env import make_env
from edge_agent.policy_store import PolicyStore
from shoal.noise import noise_block
from shoal.policy import ACTION, LOG_PROB, NOISE, OBSERVATION
from shoal.spaces import observation_box

ROWS = 256


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Acrobot-v1", "Pendulum-v1"])
def test_a_device_decides_bit_for_bit_like_the_learners_own_run_of_the_graph(
    env_id: str, tmp_path: Path
) -> None:
    with make_env(EnvConfig(env_id)) as environments:
        spec = environments.spec
    rng = np.random.default_rng(5)
    observations = rng.normal(size=(ROWS, *observation_box(spec).shape)).astype(np.float32)
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
            model = build_model(spec, seed=seed)
            quantizer = Quantizer(spec, model)
            quantized = quantizer.quantize(model, observations)
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
