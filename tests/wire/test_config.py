"""Configuration comes from a file, then the environment, then flags; errors say what to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.config import Flag, load_config
from shoal.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Broker:
    host: str = "localhost"
    port: int = 8883
    keepalive_s: float = 30.0

    def __post_init__(self) -> None:
        if not 1 <= self.port <= 65535:
            raise ConfigError(f"port = {self.port}; it must be from 1 to 65535")


@dataclass(frozen=True, slots=True)
class Settings:
    fleet: str
    state_dir: Path = Path("state")
    broker: Broker = field(default_factory=Broker)
    rate_hz: float | None = None
    mode: Literal["wait", "safe_action"] = "wait"
    hidden: tuple[int, ...] = (64, 64)
    safe_action: list[float] | None = None
    kwargs: dict[str, object] = field(default_factory=dict)
    verbose: bool = False


def load(
    tmp_path: Path,
    text: str = 'fleet = "farm"',
    *,
    environ: Mapping[str, str] | None = None,
    **overrides: object,
) -> Settings:
    path = tmp_path / "agent.toml"
    path.write_text(text, encoding="utf-8")
    flags = {name.replace("__", "."): value for name, value in overrides.items()}
    return load_config(Settings, path, environ=environ or {}, overrides=flags)


def message(tmp_path: Path, text: str, *, environ: Mapping[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text, environ=environ)
    assert "\n" not in str(caught.value), "one line"
    if not environ:
        assert str(tmp_path / "agent.toml") in str(caught.value), "says where"
    return str(caught.value)


def test_reads_every_kind_of_value(tmp_path: Path) -> None:
    settings = load(
        tmp_path,
        """
        fleet = "farm"
        state_dir = "var"
        rate_hz = 50
        mode = "safe_action"
        hidden = [32, 16]
        safe_action = [0, 0.5]
        verbose = true
        [broker]
        port = 1883
        [kwargs]
        gravity = 9.8
        """,
    )
    assert settings == Settings(
        fleet="farm",
        state_dir=tmp_path / "var",
        broker=Broker(port=1883),
        rate_hz=50.0,
        mode="safe_action",
        hidden=(32, 16),
        safe_action=[0.0, 0.5],
        kwargs={"gravity": 9.8},
        verbose=True,
    )
    assert isinstance(settings.rate_hz, float)


def test_what_is_not_given_has_its_default(tmp_path: Path) -> None:
    assert load(tmp_path) == Settings(fleet="farm")


def test_flags_come_before_the_environment_and_that_before_the_file(tmp_path: Path) -> None:
    text = 'fleet = "file"\n[broker]\nport = 1\nhost = "file"\nkeepalive_s = 1'
    environ = {"SHOAL_BROKER__PORT": "2", "SHOAL_BROKER__HOST": "env"}
    settings = load(tmp_path, text, environ=environ, broker__port=3, broker__host=None)
    assert settings.broker == Broker(host="env", port=3, keepalive_s=1.0)


@pytest.mark.parametrize(
    ("name", "text", "wanted"),
    [
        ("fleet", "farm-2", "farm-2"),
        ("fleet", "12", "12"),
        ("fleet", "true", "true"),
        ("fleet", "2026-01-01", "2026-01-01"),
        ("fleet", '"quoted"', '"quoted"'),
        ("fleet", "[x]", "[x]"),
        ("rate_hz", "50", 50.0),
        ("verbose", "true", True),
        ("hidden", "[8, 8]", (8, 8)),
        ("mode", "safe_action", "safe_action"),
    ],
)
def test_a_variable_is_read_as_its_key_wants_it(
    tmp_path: Path, name: str, text: str, wanted: object
) -> None:
    settings = load(tmp_path, environ={f"SHOAL_{name.upper()}": text})
    assert getattr(settings, name) == wanted


def test_an_absolute_path_in_a_variable_is_kept(tmp_path: Path) -> None:
    assert load(tmp_path, environ={"SHOAL_STATE_DIR": "/var/lib"}).state_dir == Path("/var/lib")


def test_variables_of_other_programs_are_left_alone(tmp_path: Path) -> None:
    environ = {"SHOAL_SOMETHING_ELSE": "1", "SHOALS": "2", "PATH": "/bin"}
    assert load(tmp_path, environ=environ) == Settings(fleet="farm")


@pytest.mark.parametrize(
    ("text", "key", "nearest"),
    [
        ('fleet = "a"\nstate_dri = "x"', "state_dri", "state_dir"),
        ('fleet = "a"\n[broker]\nprot = 1', "broker.prot", "port"),
        ('fleet = "a"\n[brokers]\nport = 1', "brokers", "broker"),
        ('fleet = "a"\nport = 1', "port", "did you mean broker.port?"),
        ('fleet = "a"\nkeepalive = 1', "keepalive", "mean broker.keepalive_s?"),
        ('fleet = "a"\n[broker]\nzzzzzz = 1', "broker.zzzzzz", "host, keepalive_s, port"),
    ],
)
def test_an_unknown_key_names_the_nearest(
    tmp_path: Path, text: str, key: str, nearest: str
) -> None:
    error = message(tmp_path, text)
    assert f"unknown key {key}" in error
    assert nearest in error


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int
    compressed: bool = True


@dataclass(frozen=True, slots=True)
class Upstream:
    host: str
    port: int = 1
    compressed: bool = True


@dataclass(frozen=True, slots=True)
class Site:
    server: Address
    upstream: Upstream | None = None


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("port = 1", "unknown key port; did you mean server.port or upstream.port?"),
        (
            'upstream = "127.0.0.1:1"',
            "upstream must be a table: { host = \"...\", port = ... }, not '127.0.0.1:1'",
        ),
    ],
)
def test_a_key_of_a_table_is_found_there_and_a_table_is_shown_as_it_is_written(
    tmp_path: Path, text: str, complaint: str
) -> None:
    path = tmp_path / "relay.toml"
    path.write_text(f'{text}\n[server]\nhost = "a"\nport = 1')
    with pytest.raises(ConfigError) as caught:
        load_config(Site, path, environ={})
    assert str(caught.value) == f"{path}: {complaint}"


def test_an_unknown_key_in_a_variable_names_the_nearest(tmp_path: Path) -> None:
    error = message(tmp_path, 'fleet = "a"', environ={"SHOAL_BROKER__PROT": "1"})
    assert error == "SHOAL_BROKER__PROT: unknown key broker.prot; did you mean port?"


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("SHOAL_BROKER__PORT", "fast", "broker.port = 'fast'; it must be of type int"),
        ("SHOAL_BROKER__PORT", "0", "broker.port = 0; it must be from 1 to 65535"),
        (
            "SHOAL_BROKER",
            "3",
            'broker must be a table: { host = "...", port = ... }, not 3',
        ),
        ("SHOAL_BROKER", "{prt = 1}", "unknown key broker.prt; did you mean port?"),
        ("SHOAL_MODE", "sleep", "mode = 'sleep'; it must be one of 'wait', 'safe_action'"),
        ("SHOAL_FLEET__NAME", "a", "fleet is a value, not a table: it has no name"),
    ],
)
def test_what_is_wrong_with_a_variable_is_blamed_on_it_and_not_on_the_file(
    tmp_path: Path, name: str, text: str, complaint: str
) -> None:
    file = 'fleet = "a"\n[broker]\nhost = "here"'
    assert message(tmp_path, file, environ={name: text}) == f"{name}: {complaint}"


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        ("seed", 1, "--seed: unknown key seed"),
        ("state_dir", 3, "--state-dir: state_dir = 3"),
        ("broker.prt", 1, "--set broker.prt: unknown key broker.prt; did you mean port"),
        ("broker.port", Flag("--broker", 0), "--broker: broker.port = 0"),
        ("broker", Flag("--set broker", {"port": 0}), "--set broker: broker.port = 0"),
    ],
)
def test_what_is_wrong_with_a_flag_is_blamed_on_it_and_not_on_the_file(
    tmp_path: Path, key: str, value: object, complaint: str
) -> None:
    path = tmp_path / "agent.toml"
    path.write_text('fleet = "a"')
    with pytest.raises(ConfigError) as caught:
        load_config(
            Settings,
            path,
            environ={"SHOAL_BROKER__PORT": "1"},
            overrides={key: value, "fleet": Flag("--fleet", None)},
        )
    assert str(caught.value).startswith(complaint)


def test_a_fault_of_the_file_is_blamed_on_it_though_a_variable_sets_its_neighbour(
    tmp_path: Path,
) -> None:
    text = 'fleet = "a"\n[broker]\nport = 0'
    path = tmp_path / "agent.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(Settings, path, environ={"SHOAL_BROKER__HOST": "there"})
    assert str(caught.value).startswith(f"{path}: broker.port = 0")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ["fleet", "missing"]),
        ("fleet = 3", ["fleet", "3", "str"]),
        ('fleet = "a"\nverbose = 1', ["verbose", "1", "bool"]),
        ('fleet = "a"\nrate_hz = "fast"', ["rate_hz", "fast", "float"]),
        ('fleet = "a"\nrate_hz = true', ["rate_hz", "True"]),
        ('fleet = "a"\nmode = "sleep"', ["mode", "sleep", "'wait'", "'safe_action'"]),
        ('fleet = "a"\nhidden = ["x"]', ["hidden", "x", "int"]),
        ('fleet = "a"\nhidden = 3', ["hidden", "3"]),
        ('fleet = "a"\nbroker = 3', ["broker", "3", "table"]),
        ('fleet = "a"\n[broker]\nport = 1.5', ["broker.port", "1.5", "int"]),
        ('fleet = "a"\n[broker]\nport = 0', ["broker.port", "0", "65535"]),
        (f'fleet = "a"\nrate_hz = 1{"0" * 400}', ["rate_hz"]),
        ("fleet = ", ["Invalid value"]),
        ('fleet = "a"\nfleet = "b"', ["Cannot overwrite"]),
        (f'fleet = "a"\nrate_hz = 1{"0" * 5000}', ["digits"]),
    ],
)
def test_a_wrong_value_says_key_value_and_what_it_must_be(
    tmp_path: Path, text: str, parts: list[str]
) -> None:
    error = message(tmp_path, text)
    assert all(part in error for part in parts), error


def test_a_file_that_is_missing_or_no_text_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load_config(Settings, tmp_path / "none.toml", environ={})
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="binary"):
        load_config(Settings, tmp_path / "binary.toml", environ={})
    with pytest.raises(ConfigError):
        load_config(Settings, tmp_path, environ={})


def test_without_a_file_there_are_defaults_and_flags() -> None:
    settings = load_config(Settings, None, environ={}, overrides={"fleet": "a", "broker.port": 9})
    assert settings == Settings(fleet="a", broker=Broker(port=9))


TOML = st.recursive(
    st.one_of(st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=5)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
KEYS = st.sampled_from([*Settings.__dataclass_fields__, "broker.port", "x"])


@given(st.dictionaries(KEYS, TOML, max_size=4))
def test_any_values_make_settings_or_a_config_error(values: dict[str, object]) -> None:
    try:
        settings = load_config(Settings, None, environ={}, overrides={"fleet": "a", **values})
    except ConfigError:
        return
    assert isinstance(settings.broker.port, int)
    assert settings.mode in ("wait", "safe_action")
