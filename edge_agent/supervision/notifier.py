"""Tells whoever started this process how it is: systemd's sd_notify, over a socket of our own."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

HELD: Final = "X_SHOAL_HELD"
"""Our own assignment: what the agent waits for without being to blame. systemd ignores it."""


class Notifier:
    """Sends assignments; where nobody listens nothing comes of it.

    notifier = Notifier.from_environ(os.environ)
    notifier.tell("READY=1", "STATUS=acting with policy 7")
    """

    def __init__(self, address: str | None) -> None:
        """Opens nothing yet.

        Args:
            address: Of the socket; `@` begins an abstract one; None: nobody listens.
        """
        self._address = address

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] = os.environ) -> Notifier:
        """The one that `NOTIFY_SOCKET` names."""
        return cls(environ.get("NOTIFY_SOCKET") or None)

    def tell(self, *assignments: str) -> None:
        """Says something; a listener that is gone or full is no fault of ours."""
        if self._address is None:
            return
        abstract = self._address.startswith("@")
        address = f"\0{self._address[1:]}" if abstract else self._address
        message = "\n".join(" ".join(each.split("\n")) for each in assignments).encode()
        with (
            suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out,
        ):
            out.setblocking(False)  # noqa: FBT003 - the socket's own signature
            out.sendto(message, address)
