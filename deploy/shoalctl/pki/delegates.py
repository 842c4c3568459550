"""Delegates of a fleet's policy key: what a learner signs with while that key lies in a safe.

delegate.key         in the learner's identity: key and delegation, a line each, hexadecimal
policy.generation    beside policy.key: the highest generation that was given out
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from shoal.delegation import Delegation, prove_delegation, sign_delegation
from shoal.durable_file import write_durably
from shoal.errors import ConfigError, IdentityError, IdentityMissing, PolicyRejected, WireError
from shoalctl.pki.certificates import BACKDATE
from shoalctl.pki.key_files import PRIVATE, PUBLIC, private_hex, read_policy_key

DELEGATE_FILE, GENERATION_FILE = "delegate.key", "policy.generation"
DELEGATION_LIFETIME = timedelta(days=180)


@dataclass(frozen=True, slots=True)
class Delegate:
    """A new key, and the delegation by which it signs.

    Attributes:
        delegation: What the policy key says of it.
        file: What a learner's `delegate.key` holds.
    """

    delegation: Delegation
    file: bytes


def make_delegate(
    root: Ed25519PrivateKey, fleet: str, generation: int, *, now: datetime, lifetime: timedelta
) -> Delegate:
    """Makes a key and has the policy key delegate to it.

    Args:
        root: The policy key.
        fleet: Whose policies it may sign.
        generation: Higher than any that was given out.
        now: By the wall clock.
        lifetime: For how long.
    """
    key = Ed25519PrivateKey.generate()
    delegation = Delegation(
        fleet=fleet,
        public_key=key.public_key().public_bytes_raw(),
        generation=generation,
        not_before_s=int((now - BACKDATE).timestamp()),
        not_after_s=int((now + lifetime).timestamp()),
    )
    signed = sign_delegation(delegation, root).hex().encode("ascii")
    return Delegate(delegation, private_hex(key) + signed + b"\n")


@dataclass(frozen=True, slots=True)
class DelegationOffice:
    """Makes delegates where the policy key is at hand.

    office = DelegationOffice(Path("/media/safe/policy.key"), "reef", pki.policy_public_key)
    office.delegate(present=identity / DELEGATE_FILE, lifetime=timedelta(days=90))

    Attributes:
        policy_key: The key's file; the highest generation is noted beside it.
        fleet: Its fleet.
        public_key: Its public half, 32 bytes, which devices hold.
        clock: The wall clock.
    """

    policy_key: Path
    fleet: str
    public_key: bytes
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)

    def delegate(
        self, *, present: Path, lifetime: timedelta = DELEGATION_LIFETIME, generation: int = 0
    ) -> Delegate:
        """Makes the next delegate, and notes its generation; it is not installed yet.

        Args:
            present: The learner's `delegate.key`: the next generation is above its, if it is there.
            lifetime: For how long it may sign.
            generation: Its generation; 0: the next.

        Raises:
            IdentityError: The policy key is missing, damaged, or not the fleet's.
            ConfigError: The generation is not higher than all before, or can't be noted.
        """
        root = self._root()
        highest = max(self._noted(), self._installed(present))
        chosen = generation or highest + 1
        if chosen <= highest:
            raise ConfigError(
                f"--generation {generation}: {highest} was given out before, and devices never go "
                f"back: leave it out, or give more than {highest}"
            )
        delegate = make_delegate(root, self.fleet, chosen, now=self.clock(), lifetime=lifetime)
        path = self._note
        try:
            write_durably(path, f"{chosen}\n".encode("ascii"), mode=PUBLIC)
        except OSError as error:
            raise ConfigError(
                f"can't note generation {chosen} in {path} ({error.strerror}): nothing was made, "
                "as the next one has to be higher; make that place writable"
            ) from error
        return delegate

    @property
    def _note(self) -> Path:
        return self.policy_key.with_name(GENERATION_FILE)

    def _root(self) -> Ed25519PrivateKey:
        try:
            key = read_policy_key(self.policy_key)
        except (OSError, ValueError) as error:
            raise IdentityError(f"{self.policy_key}: not a policy key ({error})") from error
        if key is None:
            raise IdentityMissing(
                f"{self.policy_key}: no such file; give the place of the fleet's policy key with "
                "--policy-key"
            )
        if key.public_key().public_bytes_raw() != self.public_key:
            raise IdentityError(
                f"{self.policy_key} is not the policy key of {self.fleet}: its devices would "
                "refuse whatever that delegate signs"
            )
        return key

    def _noted(self) -> int:
        try:
            return int(self._note.read_text("ascii"))
        except FileNotFoundError:
            return 0
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{self._note}: not the number of the last generation ({error}): write it there, "
                "the newest policy's in `shoal policy show`"
            ) from error

    def _installed(self, path: Path) -> int:
        """The generation of what a learner has; 0 where that is of no use."""
        try:
            return read_delegation(path, self.public_key).generation
        except IdentityError:
            return 0


def read_delegation(path: Path, public_key: bytes) -> Delegation:
    """The delegation in a learner's `delegate.key`, proven.

    Args:
        path: The file.
        public_key: The fleet's policy key, 32 bytes.

    Raises:
        IdentityError: It is missing, damaged, or not of that key.
    """
    try:
        _, _, signed = path.read_text("ascii").strip().partition("\n")
        root = Ed25519PublicKey.from_public_bytes(public_key)
        return prove_delegation(bytes.fromhex(signed), root)
    except OSError as error:
        raise IdentityError(
            f"{path}: {error.strerror}; the learner signs with the policy key itself, or with "
            "nothing: `shoal pki delegate --policy-key ...` makes a delegate"
        ) from error
    except (ValueError, WireError, PolicyRejected) as error:
        raise IdentityError(f"{path}: {error}; make another with `shoal pki delegate`") from error


def install(path: Path, delegate: Delegate) -> None:
    """Writes a learner's `delegate.key`: the old one or the new, whatever happens.

    Raises:
        ConfigError: It can't be written.
    """
    try:
        write_durably(path, delegate.file, mode=PRIVATE)
    except OSError as error:
        raise ConfigError(
            f"can't write {path}: {error.strerror}; give the place of the learner's "
            f"{DELEGATE_FILE} with --out"
        ) from error
