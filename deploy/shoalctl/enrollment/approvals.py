"""Devices without a token, who wait until an operator lets them in."""

from __future__ import annotations

from shoal.errors import ConfigError
from shoalctl.enrollment.config import HOUR_S, EnrollmentConfig
from shoalctl.enrollment.refusal import EnrollmentRefused, Reason
from shoalctl.enrollment.store import DENIED, PENDING, EnrollmentStore, RequestRecord


class Approvals:
    """Who asked, under which name and with which key. Within a transaction of the store.

    approvals = Approvals(config, store)
    approvals.ask(RequestRecord("pi-1", digest, address, now_s, PENDING)).state
    approvals.decide("pi-1", APPROVED, now_s=now_s)
    """

    def __init__(self, config: EnrollmentConfig, store: EnrollmentStore) -> None:
        """Asks nobody yet.

        Args:
            config: How many may wait, and how long.
            store: Where they are kept.
        """
        self._config = config
        self._store = store

    def ask(self, asked: RequestRecord) -> RequestRecord:
        """Takes a request, or finds it.

        Args:
            asked: Pending, as it would be kept.

        Returns:
            What is kept of it: this very one if it is new.

        Raises:
            EnrollmentRefused: Nobody may wait, too many do, another waits under that name, or an
                operator has denied it.
        """
        device_id = asked.device_id
        self._forget_old(asked.created_s)
        found = self._store.request(device_id)
        if found is None:
            self._require_room(device_id)
            self._store.put_request(asked)
            return asked
        if found.key_digest != asked.key_digest:
            raise EnrollmentRefused(
                Reason.NAME_REQUESTED,
                f"another device waits under the name {device_id}: choose another name",
                device_id=device_id,
            )
        if found.state == DENIED:
            raise EnrollmentRefused(
                Reason.DENIED, f"an operator has denied {device_id}", device_id=device_id
            )
        return found

    def decide(self, device_id: str, state: str, *, now_s: float) -> RequestRecord:
        """Approves or denies one.

        Raises:
            ConfigError: There is none under that name.
        """
        self._forget_old(now_s)
        found = self._store.request(device_id)
        if found is None:
            raise ConfigError(
                f"no device waits under the name {device_id!r}: `shoal enroll requests` lists "
                "those that do"
            )
        decided = RequestRecord(device_id, found.key_digest, found.address, found.created_s, state)
        self._store.put_request(decided)
        return decided

    def _require_room(self, device_id: str) -> None:
        if not self._config.max_requests:
            raise EnrollmentRefused(
                Reason.TOKEN_MISSING,
                "this fleet admits nobody without a token: make one with `shoal enroll token "
                "create`",
                device_id=device_id,
            )
        waiting = [each for each in self._store.requests() if each.state == PENDING]
        if len(waiting) >= self._config.max_requests:
            raise EnrollmentRefused(
                Reason.TOO_MANY_REQUESTS,
                "too many devices wait for an operator: come back later, or with a token",
                device_id=device_id,
            )

    def _forget_old(self, now_s: float) -> None:
        self._store.drop_requests_before(now_s - self._config.request_lifetime_h * HOUR_S)
