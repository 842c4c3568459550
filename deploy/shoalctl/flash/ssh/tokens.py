"""Where the enrolment token of a host comes from."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol, TextIO

from shoal.errors import ConfigError
from shoal.topics import check_device_id
from shoalctl.enrollment.config import CONFIG_FILE, load_enrollment

MAX_TOKEN_BYTES: Final = 4096
TTL_S: Final = 24 * 3600.0
"""Of a token made here: time for a device that is flashed today to find its network."""


class TokenSource(Protocol):
    """Gives a host its token."""

    def token_for(self, device_id: str) -> str:
        """The token that a device enrols with; it is asked for only when it is needed."""
        ...


@dataclass(frozen=True, slots=True)
class GivenToken:
    """One token, as it was typed: for one host, or for several if it has as many uses."""

    text: str = field(repr=False)

    def token_for(self, device_id: str) -> str:
        """The same for all."""
        del device_id
        return self.text


@dataclass(frozen=True, slots=True)
class FleetTokens:
    """Makes a token a device, in the directory of its fleet.

    Attributes:
        directory: What `shoal fleet init` made.
        clock: Unix time.
    """

    directory: Path
    clock: Callable[[], float] = time.time

    def token_for(self, device_id: str) -> str:
        """A new token that enrols this name only, once.

        Raises:
            ConfigError: The directory is no fleet's, or the name is none.
        """
        from shoalctl.enrollment.store import EnrollmentStore
        from shoalctl.enrollment.tokens import TokenRecord, new_token

        check_device_id(device_id)
        config = load_enrollment(self.directory)
        token, now_s = new_token(), self.clock()
        record = TokenRecord(
            token.id,
            token.digest,
            device_id,
            1,
            0,
            now_s,
            now_s + TTL_S,
            revoked=False,
            replace=False,
        )
        with EnrollmentStore(config.database) as store, store.transaction():
            store.add_token(record)
            store.add_event(
                "token_created",
                f"token {token.id}, for {device_id}, made to flash it over SSH",
                severity="info",
                device_id=device_id,
                now_s=now_s,
            )
        return token.text


def read_token_source(
    token: str | None, token_file: Path | None, fleet: Path | None, stdin: TextIO
) -> TokenSource | None:
    """What was typed about tokens.

    Args:
        token: `-` reads one from stdin; a token itself is refused, since all can see it there.
        token_file: A file that holds one.
        fleet: The directory of a fleet, where each host gets its own if none was given.
        stdin: Where `-` reads.

    Raises:
        ConfigError: More than one was given, or it can't be read.
    """
    if token is not None and token_file is not None:
        raise ConfigError("give one of --token - and --token-file")
    if token is not None:
        if token != "-":  # noqa: S105 - the sign for stdin
            raise ConfigError(
                "--token: a token on the command line is seen by everybody on this machine: use "
                "--token-file, or --token - and stdin"
            )
        return GivenToken(_checked(stdin.read(MAX_TOKEN_BYTES + 1), "--token -"))
    if token_file is not None:
        try:
            with token_file.open("rb") as file:
                content = file.read(MAX_TOKEN_BYTES + 1)
        except OSError as error:
            raise ConfigError(f"--token-file {token_file}: {error.strerror}") from error
        return GivenToken(
            _checked(content.decode("utf-8", "replace"), f"--token-file {token_file}")
        )
    # A directory with the public key and nothing more is enough to check a bundle.
    if fleet is not None and (fleet / CONFIG_FILE).exists():
        return FleetTokens(fleet)
    return None


def _checked(text: str, what: str) -> str:
    token = text.strip()
    if not token or len(text) > MAX_TOKEN_BYTES or not token.isascii() or not token.isprintable():
        raise ConfigError(f"{what}: it holds no token; make one with `shoal enroll token create`")
    return token
