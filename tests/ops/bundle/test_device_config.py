"""What the agent of a bundle is told."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.config import AgentConfig
from shoal.config import load_config
from shoal.endpoint import Endpoint
from shoal.errors import ConfigError
from shoalctl.flash.bundle.device_config import device_config, public_key, seed, toml_text
from shoalctl.flash.bundle.fleet_trust import FleetTrust

KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))
TRUST = FleetTrust(
    "reef",
    "ab" * 32,
    KEY.public_key().public_bytes_raw(),
    enrollment=Endpoint("fleet.example.org", 8444),
    broker=Endpoint("::1", 8883),
    parameter_server=Endpoint("fleet.example.org", 50051),
    signing_key=KEY,
)
SCALARS = (
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text("ab-é.\"' ", min_size=1), inner, max_size=3)
    ),
    max_leaves=12,
)
TABLES = st.dictionaries(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=6), VALUES, max_size=4
)


@given(tables=TABLES)
def test_toml_is_read_as_it_was_written(tables: dict[str, object]) -> None:
    assert tomllib.loads(toml_text(tables)) == tables


def read(content: bytes, tmp_path: Path) -> AgentConfig:
    (tmp_path / "read.toml").write_bytes(content)
    return load_config(AgentConfig, tmp_path / "read.toml", environ={})


def test_without_a_template_the_fleet_and_the_environment_are_enough(tmp_path: Path) -> None:
    config = read(device_config(TRUST, None, "my_env:Reef"), tmp_path)
    assert config.fleet == "reef"
    assert config.env.id == "my_env:Reef"
    assert config.identity == Path("/var/lib/shoal/identity")
    assert config.state_dir == Path("/var/lib/shoal")
    assert (config.broker.host, config.broker.port) == ("::1", 8883)
    assert config.parameter_server.port == 50051
    assert read(device_config(TRUST, None, None), tmp_path).env.id == "CartPole-v1"


def test_a_template_says_the_rest_and_may_say_where_the_fleet_is(tmp_path: Path) -> None:
    template = tmp_path / "agent.toml"
    template.write_text(
        'telemetry_interval_s = 2\n[env]\nid = "a:B"\n[env.kwargs]\npin = 4\nnames = ["x", "y"]\n'
        '[actor]\ncontrol_hz = 50.0\n[broker]\nhost = "10.0.0.9"\n'
    )
    config = read(device_config(TRUST, template, None), tmp_path)
    assert config.env.id == "a:B"
    assert config.env.kwargs == {"pin": 4, "names": ["x", "y"]}
    assert config.actor.control_hz == 50.0
    assert (config.broker.host, config.broker.port) == ("10.0.0.9", 8883)
    assert config.parameter_server.host == "fleet.example.org"
    assert read(device_config(TRUST, template, "c:D"), tmp_path).env.id == "c:D"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('fleet = "other"', "other"),
        ('identity = "here"', "leave it out"),
        ("[env", "agent.toml"),
        ("env = 1", "must be a table"),
        ('[env]\nid = "a"\n[actr]\n', "unknown key actr"),
        ('[env]\nid = "a"\n[broker]\nport = 0', "broker.port"),
    ],
)
def test_a_template_that_is_wrong_is_refused_by_its_own_name(
    text: str, words: str, tmp_path: Path
) -> None:
    template = tmp_path / "agent.toml"
    template.write_text(text)
    with pytest.raises(ConfigError, match=words) as caught:
        device_config(TRUST, template, None)
    assert "/tmp/shoal-bundle-" not in str(caught.value)
    with pytest.raises(ConfigError, match="No such file"):
        device_config(TRUST, tmp_path / "none.toml", None)


def test_the_seed_says_where_to_enrol_and_whom_to_trust_and_nothing_secret() -> None:
    assert json.loads(seed(TRUST)) == {
        "schema": 1,
        "fleet": "reef",
        "host": "fleet.example.org",
        "port": 8444,
        "ca_fingerprint": "ab" * 32,
    }
    assert bytes.fromhex(public_key(TRUST).decode()) == TRUST.public_key
