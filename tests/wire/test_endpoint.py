"""Where something listens is read and written alike."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.endpoint import Endpoint
from shoal.errors import ConfigError


@given(st.sampled_from(["fleet.local", "10.0.0.7", "[::1]"]), st.integers(1, 65_535))
def test_an_address_is_written_as_it_was_read(host: str, port: int) -> None:
    text = f"{host}:{port}"
    endpoint = Endpoint.parse(text, what="--server")
    assert str(endpoint) == text
    assert endpoint.port == port


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("here", "give HOST:PORT, such as localhost:8883"),
        (":1", "give HOST:PORT"),
        ("here:", "give HOST:PORT"),
        ("here:\u0663", "give HOST:PORT"),
        ("here:-1", "give HOST:PORT"),
        ("here:0", "a port is 1 to 65535"),
        ("here:65536", "a port is 1 to 65535"),
        ("here:" + "9" * 5000, "a port is 1 to 65535"),
    ],
)
def test_what_is_none_is_refused_by_the_flag_it_was_given_to(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=f"--broker .*{said}") as caught:
        Endpoint.parse(text, what="--broker")
    assert len(str(caught.value)) < 300
