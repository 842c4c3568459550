"""An environment of one's own is found in the directory one works in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

OWN = """
import gymnasium
import numpy as np


class Arm(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (6,), np.float32)
    action_space = gymnasium.spaces.Discrete(5)

    def reset(self, *, seed=None, options=None):
        return np.zeros(6, np.float32), {}

    def step(self, action):
        return np.zeros(6, np.float32), 0.0, False, False, {}
"""


def test_a_module_beside_the_user_is_found_though_it_is_not_installed(tmp_path: Path) -> None:
    (tmp_path / "my_own_arm.py").write_text(OWN)
    code = (
        "from edge_agent.config import EnvConfig\n"
        "from edge_agent.environments.env import make_env\n"
        "with make_env(EnvConfig('my_own_arm:Arm', num_envs=2)) as envs:\n"
        "    print(envs.reset().shape)\n"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout == "(2, 6)\n"
