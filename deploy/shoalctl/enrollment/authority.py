"""The authority: decides who becomes a member of the fleet, and writes it down.

It holds the intermediate's key and sees no private key of a device. What it decides is in the
database, on the broker's device list and on the revocation list before anybody is told.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from shoal.durable_file import write_durably
from shoal.enrollment import key_digest
from shoal.errors import ConfigError
from shoal.topics import check_device_id
from shoalctl.enrollment.applications import (
    Application,
    Member,
    Renewal,
    device_id_of,
    is_issued_by,
)
from shoalctl.enrollment.approvals import Approvals
from shoalctl.enrollment.config import HOUR_S, EnrollmentConfig
from shoalctl.enrollment.refusal import EnrollmentRefused, Reason, name_taken
from shoalctl.enrollment.store import APPROVED, PENDING, EnrollmentStore, RequestRecord
from shoalctl.enrollment.tokens import judge_token, parse_token
from shoalctl.pki.pki import FleetPki, Role
from shoalctl.pki.registry import DeviceRegistry

KEPT_ON_LIST_S: Final = 90 * 24 * HOUR_S
"""How long a revoked certificate stays on the CRL after its end."""


class Authority:
    """Enrols, renews and revokes devices; call it from any thread.

    authority = Authority(config, pki, store, redeem=challenges.redeem, clock=time.time)
    member = authority.enroll(application)  # None: an operator has to approve
    """

    def __init__(
        self,
        config: EnrollmentConfig,
        pki: FleetPki,
        store: EnrollmentStore,
        *,
        redeem: Callable[[bytes], bool],
        clock: Callable[[], float],
    ) -> None:
        """Decides nothing yet.

        Args:
            config: The rules.
            pki: The fleet's intermediate.
            store: What was decided.
            redeem: Whether a challenge may be answered; true once.
            clock: Wall clock, Unix seconds.
        """
        self._config = config
        self._pki = pki
        self._store = store
        self._redeem = redeem
        self._clock = clock
        self._registry = DeviceRegistry(config.devices_file)
        self._approvals = Approvals(config, store)

    # ------------------------------------------------------------------------------- for devices

    def enroll(self, application: Application) -> Member | None:
        """Makes a device a member.

        Returns:
            None while an operator has to approve.

        Raises:
            EnrollmentRefused: It may not be one; that is counted and an event.
        """
        try:
            return self._enroll(application)
        except EnrollmentRefused as refusal:
            self.note_refusal(refusal, address=application.address)
            raise

    def renew(self, renewal: Renewal, *, address: str) -> Member:
        """Gives a member a certificate that ends later.

        Raises:
            EnrollmentRefused: It is none, or not any more; that is counted and an event.
        """
        try:
            return self._renew(renewal)
        except EnrollmentRefused as refusal:
            self.note_refusal(refusal, address=address)
            raise

    def note_refusal(self, refusal: EnrollmentRefused, *, address: str) -> None:
        """Counts a refusal and makes it an event."""
        with self._store.transaction():
            self._note(
                "refused",
                str(refusal),
                severity="warning",
                device_id=refusal.device_id,
                reason=str(refusal.reason),
                address=address,
            )

    # ----------------------------------------------------------------------------- for operators

    def revoke(self, device_id: str, *, certificate: x509.Certificate | None = None) -> int:
        """Ends a membership: on the broker's list, on the CRL, and for renewals.

        Args:
            device_id: Who.
            certificate: One that was issued elsewhere, to be revoked too.

        Returns:
            How many certificates were revoked.

        Raises:
            ConfigError: No such device was enrolled, or a file can't be written.
        """
        check_device_id(device_id)
        now_s = self._clock()
        with self._store.transaction():
            self._adopt_issued(device_id, now_s=now_s)
            if certificate is not None:
                self._adopt(certificate, device_id, now_s=now_s)
            if self._store.device(device_id) is None:
                raise ConfigError(
                    f"no device {device_id!r} was enrolled here (`shoal enroll ls`); if its "
                    "certificate came from elsewhere, give it with --certificate"
                )
            revoked = self._store.revoke_certificates(device_id, now_s=now_s)
            self._store.revoke_device(device_id, now_s=now_s)
            self._store.drop_request(device_id)
            self._registry.remove(device_id)
            self.write_revocation_list()
            self._note("revoked", f"{device_id} is no member any more", device_id=device_id)
        return revoked

    def decide(self, device_id: str, state: str) -> RequestRecord:
        """Approves or denies a request.

        Raises:
            ConfigError: There is none under that name.
        """
        with self._store.transaction():
            decided = self._approvals.decide(device_id, state, now_s=self._clock())
            self._note(state, f"an operator has {state} {device_id}", device_id=device_id)
        return decided

    def write_revocation_list(self) -> None:
        """Writes the CRL as the database has it.

        Raises:
            ConfigError: It can't be written.
        """
        # A connection may outlive its certificate: ended ones stay on the list for a while.
        found = self._store.revoked(ended_after_s=self._clock() - KEPT_ON_LIST_S)
        revoked = {
            serial: datetime.fromtimestamp(since_s, UTC) for serial, since_s in found.items()
        }
        path = self._config.revocation_list
        try:
            write_durably(path, self._pki.revocation_list(revoked), mode=0o644)
        except OSError as error:
            raise ConfigError(f"can't write {path}: {error.strerror}") from error

    def reconcile(self) -> None:
        """Makes the broker's list and the CRL what the database says, as after a crash.

        Raises:
            ConfigError: A file can't be read or written.
        """
        with self._store.transaction():
            devices = self._store.devices()
            self._registry.add(*(each.device_id for each in devices if each.revoked_s is None))
            self._registry.remove(*(each.device_id for each in devices if each.revoked_s))
            self.write_revocation_list()

    # --------------------------------------------------------------------------------- the rules

    def _enroll(self, application: Application) -> Member | None:
        application.check_sizes()
        self._redeem_once(application.challenge)
        applicant = application.read()
        with self._store.transaction():
            return self._decide(application, applicant.device_id, applicant.key)

    def _decide(
        self, application: Application, device_id: str, key: ec.EllipticCurvePublicKey
    ) -> Member | None:
        now_s = self._clock()
        known = self._store.device(device_id)
        if known is not None and known.revoked_s is None and known.key_digest == key_digest(key):
            # It was enrolled with this very key, which it has just proved to hold: it missed the
            # answer.
            return self._certify(device_id, key, "enrolled_again", now_s=now_s)
        token = None
        if application.token:
            parsed = parse_token(application.token)
            record = self._store.token(parsed.id) if parsed is not None else None
            token = judge_token(parsed, record, device_id, now_s=now_s)
        replaces = token is not None and token.replace and token.device_id == device_id
        if not replaces and (known is not None or self._is_named_elsewhere(device_id)):
            raise name_taken(device_id, revoked=known is not None and known.revoked_s is not None)
        if token is None and not self._is_approved(application, device_id, key, now_s=now_s):
            return None
        if token is not None:
            self._store.use_token(token.id)
        self._store.drop_request(device_id)
        if replaces:
            self._adopt_issued(device_id, now_s=now_s)
            self._store.revoke_certificates(device_id, now_s=now_s)
            self.write_revocation_list()
        by = f"token {token.id}" if token is not None else "operator"
        self._store.put_device(device_id, key_digest(key), now_s=now_s, by=by)
        return self._certify(device_id, key, "enrolled", now_s=now_s, by=by)

    def _is_named_elsewhere(self, device_id: str) -> bool:
        """Whether a name is that of a device that was not enrolled: `shoal pki issue` made it."""
        return self._issued(device_id).exists() or device_id in self._registry.device_ids()

    def _issued(self, device_id: str) -> Path:
        return self._config.directory / "identities" / device_id / "cert.pem"

    def _adopt_issued(self, device_id: str, *, now_s: float) -> None:
        """Notes the certificate that `shoal pki issue` left here for a name, if it did."""
        path = self._issued(device_id)
        if path.exists():
            try:
                certificate = x509.load_pem_x509_certificate(path.read_bytes())
            except (OSError, ValueError) as error:
                raise ConfigError(f"{path}: not a certificate ({error})") from error
            self._adopt(certificate, device_id, now_s=now_s)

    def _is_approved(
        self,
        application: Application,
        device_id: str,
        key: ec.EllipticCurvePublicKey,
        *,
        now_s: float,
    ) -> bool:
        asked = RequestRecord(device_id, key_digest(key), application.address, now_s, PENDING)
        found = self._approvals.ask(asked)
        if found is asked:
            self._note(
                "requested",
                f"{device_id} asks to be enrolled: `shoal enroll approve {device_id}`, or deny",
                device_id=device_id,
                address=application.address,
                key=key_digest(key).hex(),
            )
        return found.state == APPROVED

    def _renew(self, renewal: Renewal) -> Member:
        renewal.check_sizes()
        self._redeem_once(renewal.challenge)
        present = renewal.read(self._pki.issuer)
        certificate, device_id, key = present.certificate, present.device_id, present.key
        now_s = self._clock()
        with self._store.transaction():
            self._adopt(certificate, device_id, now_s=now_s)
            self._require_member(certificate, device_id, key, now_s=now_s)
            return self._certify(device_id, key, "renewed", now_s=now_s)

    def _require_member(
        self,
        certificate: x509.Certificate,
        device_id: str,
        key: ec.EllipticCurvePublicKey,
        *,
        now_s: float,
    ) -> None:
        device = self._store.device(device_id)
        if (
            device is None
            or device.revoked_s is not None
            or device.key_digest != key_digest(key)
            or self._store.is_revoked(certificate.serial_number)
        ):
            raise EnrollmentRefused(
                Reason.REVOKED,
                f"{device_id}, with this key, is no member of the fleet any more: ask its operator",
                device_id=device_id,
            )
        ended_s = now_s - certificate.not_valid_after_utc.timestamp()
        if ended_s > self._config.renewal_grace_h * HOUR_S:
            raise EnrollmentRefused(
                Reason.EXPIRED,
                f"the certificate of {device_id} ended {ended_s / HOUR_S:.0f} hours ago: enrol "
                f"anew with a token of `shoal enroll token create --device {device_id} --replace`",
                device_id=device_id,
            )

    def _adopt(self, certificate: x509.Certificate, device_id: str, *, now_s: float) -> None:
        """Notes a certificate that `shoal pki issue` made, and its device if it is new."""
        key = certificate.public_key()
        if not isinstance(key, ec.EllipticCurvePublicKey) or not is_issued_by(
            certificate, self._pki.issuer
        ):
            raise ConfigError("the certificate is not one of this fleet")
        if device_id_of(certificate.subject) != device_id:
            raise ConfigError(f"the certificate is not that of {device_id}")
        if self._store.device(device_id) is None:
            self._store.put_device(device_id, key_digest(key), now_s=now_s, by="certificate")
        self._store.add_certificate(
            certificate.serial_number,
            device_id,
            issued_s=certificate.not_valid_before_utc.timestamp(),
            expires_s=certificate.not_valid_after_utc.timestamp(),
        )

    def _certify(
        self,
        device_id: str,
        key: ec.EllipticCurvePublicKey,
        event: str,
        *,
        now_s: float,
        **fields: str,
    ) -> Member:
        lifetime = timedelta(hours=self._config.certificate_lifetime_h)
        chain = self._pki.certify(key, device_id, Role.DEVICE, lifetime=lifetime)
        certificate = x509.load_pem_x509_certificate(chain)
        expires = certificate.not_valid_after_utc
        self._store.add_certificate(
            certificate.serial_number, device_id, issued_s=now_s, expires_s=expires.timestamp()
        )
        self._registry.add(device_id)
        message = f"{device_id} has a certificate until {expires:%Y-%m-%d %H:%M} UTC"
        self._note(event, message, device_id=device_id, **fields)
        return Member(device_id, chain)

    def _redeem_once(self, challenge: bytes) -> None:
        if not self._redeem(challenge):
            raise EnrollmentRefused(
                Reason.CHALLENGE, "the challenge was answered before, or is too old: begin again"
            )

    def _note(
        self, name: str, message: str, *, device_id: str, severity: str = "info", **fields: str
    ) -> None:
        self._store.add_event(
            name, message, severity=severity, device_id=device_id, now_s=self._clock(), **fields
        )
