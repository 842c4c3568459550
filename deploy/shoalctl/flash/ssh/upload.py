"""A file to a host, by offset: what is there and right is not sent again."""

from __future__ import annotations

import asyncio
import hashlib
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Final

import asyncssh

from shoal.errors import FlashFailed
from shoalctl.flash.ssh.offline_bundle import OfflineBundle
from shoalctl.flash.ssh.remote import LinkLost, Remote
from shoalctl.flash.ssh.scripts import prefix_digest_command
from shoalctl.output import size

PIECE_BYTES: Final = 128 << 10
"""Written by one request, if the host takes as much."""
WINDOW: Final = 8
"""Requests under way: a megabyte, the step in which progress moves."""
CHECK_TIMEOUT_S: Final = 900.0
"""A slow card reads a bundle for minutes."""
WINDOW_TIMEOUT_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class Uploaded:
    """How an upload went.

    Attributes:
        sent_bytes: What was sent now.
        kept_bytes: What was there before.
    """

    sent_bytes: int
    kept_bytes: int


async def upload(
    remote: Remote,
    source: OfflineBundle,
    target: str,
    *,
    advance: Callable[[int], None],
) -> Uploaded:
    """Brings a file to a host, and goes on where an earlier upload was cut off.

    Args:
        remote: The host.
        source: The file here.
        target: Its path there, which has the file whole when this returns, or doesn't exist.
        advance: Hears of bytes that are there, also of those that were before.

    Raises:
        LinkLost: The connection ended; what came is kept.
        FlashFailed: The host can't write it, or what came is not what was sent.
    """
    part = str(PurePosixPath(target).with_suffix(".part"))
    above = shlex.quote(str(PurePosixPath(target).parent))
    made = await remote.run(f"umask 077; mkdir -p {above} && chmod 700 {above}", timeout_s=60.0)
    if made.status:
        raise FlashFailed(f"can't make {above} there: {made.complaint}")
    sent, total = 0, source.size_bytes
    kept = await _kept(remote, source.path, part, total)
    advance(kept)
    if kept < total:
        sent = await _send(remote, source.path, part, kept, advance)
    found = await _digest(remote, part, total + 1)
    if found != (total, source.sha256):
        await remote.run(shlex.join(["rm", "-f", "--", part]), timeout_s=60.0)
        raise FlashFailed(
            "what came is not what was sent, and was removed: run this again; if it happens "
            "again, the card is failing"
        )
    moved = await remote.run(
        f"sync; {shlex.join(['mv', '--', part, target])}", timeout_s=CHECK_TIMEOUT_S
    )
    if moved.status:
        raise FlashFailed(f"can't rename {part} there: {moved.complaint}")
    return Uploaded(sent, kept)


async def _kept(remote: Remote, source: Path, part: str, total: int) -> int:
    """How many bytes of the file are there and right."""
    found = await _digest(remote, part, total)
    if found is None or found[0] == 0:
        return 0
    count, digest = found
    here = await asyncio.to_thread(_local_digest, source, count)
    return count if here == digest else 0


async def _digest(remote: Remote, path: str, limit_bytes: int) -> tuple[int, str] | None:
    done = await remote.run(prefix_digest_command(path, limit_bytes), timeout_s=CHECK_TIMEOUT_S)
    words = done.text.split()
    if done.status or len(words) != 2 or not words[0].isdecimal():  # noqa: PLR2004
        return None
    return int(words[0]), words[1]


def _local_digest(source: Path, count: int) -> str:
    digest, left = hashlib.sha256(), count
    with source.open("rb") as file:
        while left and (piece := file.read(min(left, PIECE_BYTES))):
            digest.update(piece)
            left -= len(piece)
    return digest.hexdigest()


def _read_window(file: BinaryIO, length: int) -> list[bytes]:
    pieces = (file.read(length) for _ in range(WINDOW))
    return [piece for piece in pieces if piece]


async def _write_window(out: asyncssh.SFTPClientFile, pieces: Sequence[bytes], offset: int) -> None:
    """Writes pieces one after the other, without waiting for the answer to each."""
    writes = []
    for piece in pieces:
        writes.append(out.write(piece, offset))
        offset += len(piece)
    async with asyncio.timeout(WINDOW_TIMEOUT_S):
        answers = await asyncio.gather(*writes, return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer


async def _send(
    remote: Remote, source: Path, part: str, offset: int, advance: Callable[[int], None]
) -> int:
    start = offset
    try:
        async with remote.connection.start_sftp_client() as sftp:
            mode = "r+b" if offset else "wb"
            # One request each: the parallel writer of the library would leave errors unheard.
            attributes = asyncssh.SFTPAttrs(permissions=0o600)
            async with sftp.open(part, mode, attributes, block_size=0) as out:
                if offset:
                    await out.truncate(offset)
                length = min(PIECE_BYTES, sftp.limits.max_write_len or PIECE_BYTES)
                with source.open("rb") as file:
                    file.seek(offset)
                    while pieces := await asyncio.to_thread(_read_window, file, length):
                        await _write_window(out, pieces, offset)
                        count = sum(map(len, pieces))
                        offset += count
                        advance(count)
    except asyncssh.ChannelOpenError as error:
        raise FlashFailed(
            f"the host has no SFTP ({error.reason}): `apt-get install openssh-sftp-server` there"
        ) from error
    except (asyncssh.SFTPNoConnection, asyncssh.SFTPConnectionLost) as error:
        raise LinkLost(
            f"the connection to {remote.host.name} was lost at {size(offset)}"
        ) from error
    except asyncssh.SFTPError as error:
        free = await remote.run(
            f"df -Pk {shlex.quote(str(PurePosixPath(part).parent))}", timeout_s=60.0
        )
        raise FlashFailed(
            f"the host can't write the bundle beyond {size(offset)}: {error.reason}; its disk: "
            f"{' '.join(free.text.splitlines()[-1:]) or 'not known'}. Make room there, then run "
            "this again: it goes on from there"
        ) from error
    except TimeoutError as error:
        raise LinkLost(
            f"{remote.host.name} took nothing for {WINDOW_TIMEOUT_S:g} s at {size(offset)}"
        ) from error
    except (OSError, asyncssh.Error) as error:
        raise LinkLost(
            f"the connection to {remote.host.name} was lost at {size(offset)}: {error}"
        ) from error
    return offset - start
