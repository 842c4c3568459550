"""What `shoal agent enroll` does."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from dataclasses import asdict
from pathlib import Path

import typer

from edge_agent.enrollment.enrollment import Seed, enroll
from shoal.durable_file import sync_directory
from shoal.endpoint import Endpoint
from shoal.enrollment import MAX_TOKEN_CHARACTERS, check_fingerprint
from shoal.errors import ConfigError
from shoal.topics import check_device_id


def run_enroll(
    *,
    server: str,
    ca_fingerprint: str,
    identity: Path,
    name: str | None,
    token: str,
    token_file: Path | None,
    wait_s: float,
) -> None:
    """Enrols this device and prints what it is a member of, as JSON.

    Raises:
        ConfigError: A flag is wrong, or the token's file can't be read or wiped.
        ShoalError: It was not enrolled.
    """
    if token and token_file is not None:
        raise ConfigError("--token and --token-file: give one of them")
    seed = Seed(
        device_id=check_device_id(name if name is not None else _host_name()),
        server=Endpoint.parse(server, what="--server"),
        fingerprint=check_fingerprint(ca_fingerprint),
        token=read_token(token_file) if token_file is not None else token.strip(),
        identity=identity.absolute(),
    )
    membership = asyncio.run(
        enroll(seed, wait_s=wait_s, tell=lambda line: typer.echo(f"shoal: {line}", err=True))
    )
    if token_file is not None:
        wipe(token_file)
    item = {**asdict(membership), "identity": str(seed.identity)}
    typer.echo(json.dumps({"schema": "shoal.v1.Membership", "items": [item]}))


def read_token(path: Path) -> str:
    """The token in a file; empty if the file is gone, as after it was used.

    Raises:
        ConfigError: It can't be read, or holds no token.
    """
    try:
        text = path.read_text("ascii").strip()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"can't read the token in {path}: {error}") from error
    if len(text) > MAX_TOKEN_CHARACTERS:
        raise ConfigError(f"{path} holds no token: it has {len(text)} characters")
    return text


def wipe(path: Path) -> None:
    """Overwrites a file and removes it; does nothing if it is gone.

    Raises:
        ConfigError: It can't be removed.
    """
    try:
        with path.open("r+b") as file:
            file.write(bytes(path.stat().st_size))
            file.flush()
            os.fsync(file.fileno())
        path.unlink()
        sync_directory(path.parent)
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(f"can't wipe {path}: {error.strerror}; remove it by hand") from error


def _host_name() -> str:
    return socket.gethostname().partition(".")[0].lower()
