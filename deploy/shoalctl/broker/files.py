"""What each supported broker is told, as text: who may connect, and to which topics.

The rules are stated once, as MQTT topic filters (`Grant`), and written for NATS and for Mosquitto.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.topics import Topics

SERVICES = ("broker", "server")
"""Who tells of events beside the devices, by the name of its certificate."""
ACK_WAIT_S = 10
"""How long NATS waits for the learner's PUBACK before it sends a chunk again."""
MAX_ACK_PENDING = 8192
"""How many chunks a broker hands the learner ahead of its PUBACKs."""
MAX_QUEUED_MESSAGES = 100_000
"""How many chunks Mosquitto keeps for an absent learner; devices keep theirs too."""
AUTOSAVE_S = 2
"""How often Mosquitto writes what it keeps to disk; a NATS server writes each message at once."""
MAX_HEADER_BYTES = 64 * 1024
"""What a message may hold beside its payload: its topic, for the most part."""


@dataclass(frozen=True, slots=True)
class Listener:
    """Where a broker listens, as whom, and where it keeps its messages.

    Attributes:
        host: Address to listen on.
        port: TCP port of the MQTT listener; 0: any free one (NATS only).
        identity: Identity directory; its certificate names the hosts that devices connect to.
        store: Directory of sessions and queued messages.
        store_max_bytes: NATS keeps no more than this on disk.
        max_payload_bytes: Larger messages are refused.
    """

    host: str
    port: int
    identity: Path
    store: Path
    store_max_bytes: int
    max_payload_bytes: int


@dataclass(frozen=True, slots=True)
class Grant:
    """What the holder of a certificate may do; anything else is refused.

    Attributes:
        name: The certificate's CN.
        publish: MQTT topic filter.
        subscribe: MQTT topic filter.
    """

    name: str
    publish: str
    subscribe: str


def grants(fleet: str, device_ids: Iterable[str]) -> tuple[Grant, ...]:
    """The learner reads all that is said; whoever else there is speaks and listens as itself.

    The broker and the enrolment server tell the fleet of events, as devices do.
    """
    topics = Topics(fleet)
    learner = Grant("learner", f"shoal/v1/{fleet}/+/+/down/+", topics.all_up())
    devices = (
        Grant(device_id, f"{topics.base(device_id)}/up/+", f"{topics.base(device_id)}/down/#")
        for device_id in device_ids
    )
    services = (Grant(name, topics.event(name), topics.down(name)) for name in SERVICES)
    return (learner, *services, *devices)


def nats_config(name: str, listener: Listener, allowed: Sequence[Grant]) -> str:
    """The configuration of a NATS server that speaks MQTT.

    Its native port, which JetStream needs, asks for the same certificates, on loopback.
    """
    users = "".join(
        f"    {{ user: {_quoted(f'CN={grant.name}')}, permissions: {{"
        f" publish: {_quoted_list(_subjects(grant.publish))},"
        f" subscribe: {_quoted_list(_subjects(grant.subscribe))} }} }}\n"
        for grant in allowed
    )
    tls = (
        "tls {\n"
        f"  cert_file: {_quoted(listener.identity / 'cert.pem')}\n"
        f"  key_file: {_quoted(listener.identity / 'key.pem')}\n"
        f"  ca_file: {_quoted(listener.identity / 'ca.pem')}\n"
        "  verify_and_map: true\n"
        "}\n"
    )
    return (
        "# Written by `shoal broker`; changes made here are lost.\n"
        f"server_name: {_quoted(name)}\n"
        'host: "127.0.0.1"\n'
        "port: -1\n"
        f"{tls}"
        f"max_payload: {listener.max_payload_bytes + MAX_HEADER_BYTES}\n"
        "jetstream {\n"
        f"  store_dir: {_quoted(listener.store)}\n"
        f"  max_file_store: {listener.store_max_bytes}\n"
        "}\n"
        "mqtt {\n"
        f"  host: {_quoted(listener.host)}\n"
        f"  port: {listener.port or -1}\n"
        f'  ack_wait: "{ACK_WAIT_S}s"\n'
        f"  max_ack_pending: {MAX_ACK_PENDING}\n"
        f"  {tls}"
        "}\n"
        "authorization {\n"
        "  users: [\n"
        f"{users}"
        "  ]\n"
        "}\n"
    )


def mosquitto_config(
    listener: Listener,
    acl_file: Path,
    *,
    user: str | None = None,
    crl_file: Path | None = None,
    pid_file: Path | None = None,
) -> str:
    """The configuration of a Mosquitto broker, version 2.

    Args:
        listener: Its `port` must be given.
        acl_file: Where the text of `mosquitto_acl` lies.
        user: The account to run as when started as root; Mosquitto's own default if None.
        crl_file: The revocation list; None to admit every certificate of the fleet.
        pid_file: Where it notes which process to tell that files have changed.
    """
    return (
        "# Written by `shoal broker`; changes made here are lost.\n"
        f"listener {listener.port} {listener.host}\n"
        f"cafile {listener.identity / 'ca.pem'}\n"
        f"certfile {listener.identity / 'cert.pem'}\n"
        f"keyfile {listener.identity / 'key.pem'}\n"
        "require_certificate true\n"
        "use_identity_as_username true\n"
        "allow_anonymous false\n"
        f"acl_file {acl_file}\n"
        + (f"crlfile {crl_file}\n" if crl_file is not None else "")
        + (f"pid_file {pid_file}\n" if pid_file is not None else "")
        + "persistence true\n"
        f"persistence_location {listener.store}/\n"
        f"autosave_interval {AUTOSAVE_S}\n"
        f"max_packet_size {listener.max_payload_bytes + MAX_HEADER_BYTES}\n"
        f"max_inflight_messages {MAX_ACK_PENDING}\n"
        f"max_queued_messages {MAX_QUEUED_MESSAGES}\n"
        "set_tcp_nodelay true\n"
        "log_dest stderr\n"
        "log_type error\n"
        "log_type warning\n"
        "log_type notice\n"
        "log_type information\n" + (f"user {user}\n" if user else "")
    )


def mosquitto_acl(fleet: str, *, revoked: Iterable[str] = ()) -> str:
    """Mosquitto's rules: any certificate of the fleet is admitted, as whom it names (`%u`).

    Args:
        fleet: The fleet served.
        revoked: Devices that may do nothing, though they are connected.
    """
    learner = grants(fleet, ())[0]
    return (
        "# Written by `shoal broker`; changes made here are lost.\n"
        f"pattern write shoal/v1/{fleet}/+/%u/up/+\n"
        f"pattern read shoal/v1/{fleet}/+/%u/down/+\n"
        f"user {learner.name}\n"
        f"topic write {learner.publish}\n"
        f"topic read {learner.subscribe}\n"
    ) + "".join(f"user {device_id}\ntopic deny #\n" for device_id in revoked)


def _subjects(topic_filter: str) -> tuple[str, ...]:
    """NATS subjects of an MQTT filter: `a/+` is `a.*`; `a/#` is `a.>`, and `a` as well."""
    subject = topic_filter.replace("/", ".").replace("+", "*").replace("#", ">")
    return (subject, subject.removesuffix(".>")) if subject.endswith(".>") else (subject,)


def _quoted(value: str | Path) -> str:
    return json.dumps(str(value), ensure_ascii=False)


def _quoted_list(values: Sequence[str]) -> str:
    return f"[{', '.join(map(_quoted, values))}]"
