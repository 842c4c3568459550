"""A fleet that starts from a policy which was trained before."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from demo_process import demo
from learner_state import short_run

from cloud_learner.downlink.kept_policies import KeptPolicies
from cloud_learner.quantization.initial import policy_weights_from_onnx
from cloud_learner.state_dir import StateDir
from shoalctl.cli import run


@pytest.mark.timeout(200)
def test_the_first_policy_that_devices_get_is_the_one_that_was_exported(tmp_path: Path) -> None:
    made = short_run(tmp_path)
    exported = tmp_path / "policy.onnx"
    words = ("--config", str(made.config), "--precision", "fp32", "-o", str(exported))
    assert run(["learner", "export", *words]) == 0
    with demo(
        *("--init", str(exported), "--precision", "fp32", "--devices", "1", "--seed", "8"),
        *("--set", "policies_kept=1000", "--stop-after-steps", "1000", "--timeout-s", "100"),
    ) as running:
        envelope = running.finish()
        assert running.process.returncode == 0
        kept = KeptPolicies(StateDir(running.directory / "learner").policies)
        first = kept.read(kept.versions()[0])
    assert envelope["audit"]["trained"] > 0
    assert first.manifest.version == 1
    given = policy_weights_from_onnx(exported.read_bytes())
    assert first.tensors.keys() == given.keys()
    for name, array in given.items():
        np.testing.assert_allclose(first.tensors[name], array, rtol=1e-6)
