"""The rules that brokers are given, as text."""

from pathlib import Path

import pytest

from shoal.topics import Topics
from shoalctl.broker.files import (
    SERVICES,
    Grant,
    Listener,
    grants,
    mosquitto_acl,
    mosquitto_config,
    nats_config,
)

LISTENER = Listener(
    host="0.0.0.0",  # noqa: S104 - nobody listens
    port=8883,
    identity=Path('/odd "path"/broker'),
    store=Path("/store"),
    store_max_bytes=10**9,
    max_payload_bytes=2**20,
)


def test_each_device_is_granted_its_own_topics_and_the_learner_all() -> None:
    topics = Topics("demo")
    base = topics.base("pi-1")
    assert grants("demo", ["pi-1"]) == (
        Grant("learner", "shoal/v1/demo/+/+/down/+", "shoal/v1/demo/+/+/up/+"),
        *(Grant(name, topics.event(name), f"{topics.base(name)}/down/+") for name in SERVICES),
        Grant("pi-1", f"{base}/up/+", f"{base}/down/#"),
    )


def test_nats_is_told_the_same_as_subjects() -> None:
    subject = Topics("demo").base("pi-1").replace("/", ".")
    text = nats_config("demo", LISTENER, grants("demo", ["pi-1"]))
    assert (
        f'user: "CN=pi-1", permissions: {{ publish: ["{subject}.up.*"], '
        f'subscribe: ["{subject}.down.>", "{subject}.down"] }}'
    ) in text
    assert 'publish: ["shoal.v1.demo.*.*.down.*"], subscribe: ["shoal.v1.demo.*.*.up.*"]' in text


def test_every_listener_of_nats_asks_for_a_certificate_and_the_native_one_is_on_loopback() -> None:
    text = nats_config("demo", LISTENER, ())
    native, _, mqtt = text.partition("mqtt {")
    assert 'host: "127.0.0.1"' in native
    assert 'host: "0.0.0.0"' in mqtt
    assert native.count("verify_and_map: true") == mqtt.count("verify_and_map: true") == 1


def test_a_path_cannot_break_out_of_its_quotes() -> None:
    text = nats_config("demo", LISTENER, ())
    assert r'cert_file: "/odd \"path\"/broker/cert.pem"' in text


@pytest.mark.parametrize(
    "line",
    [
        "listener 8883 0.0.0.0",
        "require_certificate true",
        "use_identity_as_username true",
        "allow_anonymous false",
        "acl_file /acl",
        "persistence true",
    ],
)
def test_mosquitto_is_told_to_ask_for_a_certificate_and_to_keep_what_it_queues(line: str) -> None:
    assert line in mosquitto_config(LISTENER, Path("/acl")).splitlines()


def test_mosquitto_runs_as_another_account_only_when_told() -> None:
    assert "user" not in [
        line.split()[0] for line in mosquitto_config(LISTENER, Path("/acl")).splitlines()
    ]
    assert mosquitto_config(LISTENER, Path("/acl"), user="mqtt").endswith("user mqtt\n")


def test_mosquittos_rules_bind_each_name_to_its_topics() -> None:
    rules = [line for line in mosquitto_acl("demo").splitlines() if not line.startswith("#")]
    assert rules == [
        "pattern write shoal/v1/demo/+/%u/up/+",
        "pattern read shoal/v1/demo/+/%u/down/+",
        "user learner",
        "topic write shoal/v1/demo/+/+/down/+",
        "topic read shoal/v1/demo/+/+/up/+",
    ]
