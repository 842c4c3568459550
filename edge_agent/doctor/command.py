"""What `shoal agent doctor` does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence

import typer

from edge_agent.checks.finding import Finding, Level
from edge_agent.config import AgentConfig
from edge_agent.doctor.doctor import Examination, examine

SCHEMA = "shoal.v1.AgentDoctor"


def run_doctor(config: AgentConfig, how: Examination, *, as_json: bool) -> Sequence[Finding]:
    """Looks at everything and prints it: a line as soon as it is known, or one envelope."""
    tell = (lambda _: None) if as_json else _print_line
    findings = asyncio.run(collect(config, how, tell))
    if as_json:
        typer.echo(json.dumps(envelope(findings)))
    else:
        counts = {level: sum(each.level is level for each in findings) for level in Level}
        typer.echo(
            f"{counts[Level.OK]} ok, {counts[Level.WARN]} warnings, {counts[Level.FAULT]} faults,"
            f" {counts[Level.SKIPPED]} not looked at",
            err=True,
        )
    return findings


async def collect(
    config: AgentConfig, how: Examination, tell: Callable[[Finding], object]
) -> Sequence[Finding]:
    """All findings; each is told as soon as it is known."""
    findings = []
    async for finding in examine(config, how):
        findings.append(finding)
        tell(finding)
    return findings


def envelope(findings: Sequence[Finding]) -> dict[str, object]:
    """For programs."""
    items = [
        {
            "name": each.name,
            "ok": each.ok,
            "level": each.level.value,
            "detail": each.detail,
            "exit_code": each.exit_code,
            "figures": dict(each.figures),
        }
        for each in findings
    ]
    return {"schema": SCHEMA, "items": items}


def _print_line(finding: Finding) -> None:
    loud = finding.level in (Level.WARN, Level.FAULT)
    level = finding.level.upper() if loud else finding.level.lower()
    typer.echo(f"{level:9}{finding.name:18}{finding.detail}")
