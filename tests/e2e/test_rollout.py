"""A policy rolled out with real processes: broker, learner, devices, and the operator's command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from demo_process import DemoProcess, demo

WAIT_S = 90.0
NOT_REACHED = 2
FOREVER = "100000"
"""Episodes that nobody acts in a test: a device stays in its wave."""


@dataclass
class Operator:
    """The operator's command on a running demo."""

    running: DemoProcess

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        learner = tomllib.loads((self.running.directory / "learner.toml").read_text())
        identity = self.running.directory / "pki" / "identities" / "operator"
        server = f"{learner['server']['host']}:{learner['server']['port']}"
        return subprocess.run(
            [
                *(sys.executable, "-m", "shoalctl.cli", *words, "-o", "json"),
                *("--server", server, "--identity", str(identity)),
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=WAIT_S,
        )

    def ask(self, *words: str) -> dict[str, Any]:
        """Its answer; a learner that was killed is given the time to come back."""
        deadline_s = time.monotonic() + WAIT_S
        while (done := self.run(*words)).returncode == NOT_REACHED:
            assert time.monotonic() < deadline_s, done.stderr
        assert done.returncode == 0, done.stderr
        (item,) = json.loads(done.stdout)["items"]
        assert isinstance(item, dict)
        return item

    def until(self, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The rollout once that is so; the learner may be away meanwhile."""
        deadline_s = time.monotonic() + WAIT_S
        item: dict[str, Any] = {}
        while time.monotonic() < deadline_s:
            done = self.run("rollout", "status")
            if done.returncode == 0:
                (item,) = json.loads(done.stdout)["items"]
                if condition(item):
                    return item
        raise AssertionError(f"it did not come to that: {item}")

    def until_started(self, device_id: str, runs: int) -> None:
        """Until so many runs of a device began on what is rolled out."""
        deadline_s = time.monotonic() + WAIT_S
        names: list[str] = []
        while time.monotonic() < deadline_s:
            done = self.run("devices", "describe", device_id)
            if done.returncode == 0:
                (item,) = json.loads(done.stdout)["items"]
                names = [each["name"] for each in item["events"]]
                if names.count("rollout_started") >= runs:
                    return
        raise AssertionError(f"{device_id} did not start {runs} times: {names}")

    def devices(self) -> dict[str, dict[str, Any]]:
        found = json.loads(self.run("devices", "ls").stdout)["items"]
        return {each["device_id"]: each for each in found}

    def active_versions(self, *, without: str) -> set[int]:
        """What the other devices act with, once all were heard by a learner that just started."""
        deadline_s = time.monotonic() + WAIT_S
        while time.monotonic() < deadline_s:
            found = {
                name: each["active_version"]
                for name, each in self.devices().items()
                if name != without
            }
            if all(found.values()):
                return set(found.values())
        raise AssertionError(f"not all were heard: {found}")


@contextmanager
def operating() -> Iterator[Operator]:
    """A demo that goes on until the test ends, with a few policies published."""
    with demo("--until-return", "501", "--timeout-s", "280", "--seed", "3") as running:
        running.wait_for("policy 3")
        yield Operator(running)


def progress_of(item: dict[str, Any]) -> dict[str, str]:
    return {each["device_id"]: each["progress"] for each in item["members"]}


def is_in(*states: str) -> Callable[[dict[str, Any]], bool]:
    return lambda item: item["state"] in states


@pytest.mark.timeout(300)
def test_a_policy_goes_through_its_waves_though_the_learner_is_killed_and_a_device_is_dead() -> (
    None
):
    with operating() as operator:
        shown = operator.ask("rollout", "start", "--policy", "v2", "--dry-run")
        assert (shown["candidate_version"], operator.run("rollout", "status").returncode) == (
            None,
            1,
        )
        (canary,) = progress_of(shown)
        dead = next(each for each in sorted(operator.devices()) if each != canary)
        pid = operator.running.pid_of(dead)
        os.kill(pid, signal.SIGSTOP)
        try:
            started = operator.ask(
                *("rollout", "start", "--policy", "v2", "--wave", "1,100%", "--episodes", "2"),
                *("--wave-timeout", "20s", "--reason", "it balances longer"),
            )
            assert canary in progress_of(started)
            before = operator.until(lambda item: item["succeeded"] == 3)
            candidate, baseline = before["candidate_version"], before["baseline_version"]
            assert (before["state"], candidate > baseline > 2) == ("active", True)

            operator.running.kill("learner")
            paused = operator.ask("rollout", "pause", "--reason", "a look")
            assert progress_of(paused) == progress_of(before)
            newest = json.loads(operator.run("policy", "ls").stdout)["items"][0]["version"]
            assert newest > candidate  # it learns on
            assert operator.active_versions(without=dead) == {candidate}
            operator.ask("rollout", "resume")
            ended = operator.until(is_in("promoted", "aborted"))
        finally:
            os.kill(pid, signal.SIGCONT)
        assert ended["state"] == "promoted", ended
        assert progress_of(ended)[dead] == "timed_out"
        assert (ended["succeeded"], ended["failed"], ended["timed_out"]) == (3, 0, 1)
        assert [each["name"] for each in ended["history"]] == [
            *("started", "active", "wave_2_opened", "paused", "active", "promoted")
        ]
        watched = operator.run("rollout", "status", "--watch")
        assert (watched.returncode, len(watched.stdout.splitlines())) == (0, 1)
        # All follow the newest again, the dead one too.
        deadline_s = time.monotonic() + WAIT_S
        while time.monotonic() < deadline_s:
            versions = {each["active_version"] for each in operator.devices().values()}
            if min(versions) > candidate:
                break
        assert min(versions) > candidate


@pytest.mark.timeout(300)
def test_a_policy_on_which_a_device_dies_again_and_again_is_taken_back() -> None:
    with operating() as operator:
        started = operator.ask(
            *("rollout", "start", "--policy", "2", "--wave", "1,100%", "--episodes", FOREVER),
        )
        (canary,) = progress_of(started)
        again = operator.run("rollout", "start", "--policy", "2")
        assert again.returncode == 4
        assert "shoal rollout abort 1" in again.stderr
        for runs in (1, 2, 3):
            operator.until_started(canary, runs)
            operator.running.kill(canary)
        ended = operator.until(is_in("aborted"))
        assert "died 3 times on it" in ended["reason"]
        assert ended["undo_version"] > ended["candidate_version"]
        described = operator.run("devices", "describe", canary)
        assert "rollout_failed" in described.stdout
        watched = operator.run("rollout", "status", "--watch")
        assert watched.returncode == 1
