"""What `shoal agent diag` does: one archive for whoever is asked for help."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import os
import tarfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import typer

from edge_agent.config import AgentConfig
from edge_agent.doctor.collection import collect_entries
from edge_agent.doctor.command import collect
from edge_agent.doctor.doctor import Examination
from shoal.durable_file import write_durably
from shoal.errors import ConfigError, ShoalError

SCHEMA: Final = "shoal.v1.AgentDiag"
OWNER_ONLY: Final = 0o600


def run_diag(config: AgentConfig, how: Examination, out: Path, *, as_json: bool) -> None:
    """Collects everything and writes it.

    Raises:
        ConfigError: The file exists, or its name does not end as its kind does.
        ShoalError: It can't be written.
    """
    if not out.name.endswith((".tar.gz", ".tgz")):
        raise ConfigError(f"--out {out}: give a name that ends with .tar.gz")
    if out.exists():
        raise ConfigError(f"--out {out}: is there already, and nothing is overwritten")
    findings = asyncio.run(collect(config, how, lambda _: None))
    entries = collect_entries(config, findings, prefix=how.prefix, environ=os.environ)
    data = archive(entries, directory=out.name.partition(".")[0], now_s=time.time())
    try:
        write_durably(out, data, mode=OWNER_ONLY)
    except OSError as error:
        raise ShoalError(f"can't write {out}: {error.strerror}") from error
    if as_json:
        sizes = {name: len(content) for name, content in entries.items()}
        item = {"path": str(out), "size_bytes": len(data), "entries": sizes}
        typer.echo(json.dumps({"schema": SCHEMA, "items": [item]}))
        return
    typer.echo(out)
    left_out = "" if "log.txt" in entries else "; no log: this user sees no journal of the agent"
    typer.echo(
        f"shoal: {len(data) / 1024:.0f} KB: {', '.join(sorted(entries))}{left_out}; keys, tokens"
        " and texts of the configuration were left out: look through it before you send it",
        err=True,
    )


def archive(entries: Mapping[str, bytes], *, directory: str, now_s: float) -> bytes:
    """A gzipped tar of some files.

    Args:
        entries: Contents by name.
        directory: They lie in it.
        now_s: When they were made, Unix seconds.
    """
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, content in sorted(entries.items()):
            info = tarfile.TarInfo(f"{directory}/{name}")
            info.size, info.mtime, info.mode = len(content), int(now_s), OWNER_ONLY
            tar.addfile(info, io.BytesIO(content))
    return gzip.compress(plain.getvalue(), mtime=int(now_s))
