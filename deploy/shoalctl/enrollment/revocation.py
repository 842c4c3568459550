"""Has a Mosquitto follow what was revoked.

The embedded broker follows the device list, the learner follows the CRL; both look by themselves. A
Mosquitto reads its rules and its CRL when it is told to.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from cryptography import x509

from shoal.config import load_config
from shoal.errors import ConfigError
from shoal.logs import get_logger
from shoalctl.broker.broker import BrokerConfig, MosquittoFiles
from shoalctl.broker.files import mosquitto_acl
from shoalctl.broker.nats_server import write_text
from shoalctl.enrollment.config import EnrollmentConfig
from shoalctl.enrollment.store import EnrollmentStore

_log = get_logger("enrollment")


def follow_on_mosquitto(config: EnrollmentConfig, store: EnrollmentStore) -> None:
    """Writes the rules of a Mosquitto anew and has it read them and the CRL, if there is one here.

    A client that is connected stays so, but may neither say nor hear anything; it can't come back.

    Raises:
        ConfigError: A file can't be read or written.
    """
    if config.broker_config is None:
        return
    broker = load_config(BrokerConfig, config.broker_config)
    files = MosquittoFiles.of(broker)
    if not files.config.exists():
        return
    gone = [each.device_id for each in store.devices() if each.revoked_s is not None]
    write_text(files.acl, mosquitto_acl(config.fleet, revoked=gone))
    pid = _pid(files.pid)
    if pid is None:
        _log.warning(
            "mosquitto_not_told", problem="it does not run here: restart it", file=str(files.pid)
        )
        return
    os.kill(pid, signal.SIGHUP)


def _pid(path: Path) -> int | None:
    """The process that wrote a PID file, if it is a Mosquitto that still runs."""
    try:
        pid = int(path.read_text("ascii"))
        name = Path(f"/proc/{pid}/comm").read_text("ascii").strip()
    except (OSError, ValueError):
        return None
    return pid if name == "mosquitto" else None


def read_certificate(path: Path) -> x509.Certificate:
    """The first certificate in a file, PEM.

    Raises:
        ConfigError: There is none.
    """
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: not a certificate ({error})") from error
