"""From a blank host to an acting device over a real SSH, and back from a broken update.

The short form of `make test-device`: this machine is the device, under a directory of its own.
"""

from __future__ import annotations

import json
import platform
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from brokers import HOST
from child_process import Process
from device.bundles import make_bundle
from device.fleet_site import Answer, FleetSite, Item, shoal, wait_until
from device.reef_env import BROKEN, FAULT, GOOD
from ssh_hosts import SshHost, needs_sshd, ssh_host

NAME = "pi-7"
WAIT_S = 480.0

pytestmark = [
    needs_sshd,
    pytest.mark.skipif(
        platform.machine() not in {"aarch64", "x86_64"} or sys.version_info[:2] != (3, 11),
        reason="bundles are made here for Python 3.11 on aarch64 and x86-64",
    ),
]


@dataclass(frozen=True, slots=True)
class Story:
    """A fleet, and this machine as its device."""

    site: FleetSite
    host: SshHost
    directory: Path
    stack: ExitStack

    def bundle(self, version: str) -> Path:
        return make_bundle(self.site, self.directory, arch=platform.machine(), version=version)

    def flash(self, bundle: Path, *more: str | Path) -> Answer:
        return shoal(
            *("flash", "ssh", self.host.login, *self.host.options, "--device-id", NAME),
            *("--fleet", self.site.directory, "--bundle", bundle, *more, "-o", "json"),
            timeout_s=WAIT_S,
        )

    def launch(self) -> Process:
        """What systemd would do."""
        launcher = Process([str(self.host.prefix / "bin" / "shoal-slots"), "run"])
        self.stack.callback(launcher.stop)
        return launcher

    def slots(self) -> Item:
        found: Item = json.loads((self.host.prefix / "slots.json").read_text())
        return found


@pytest.fixture
def story(tmp_path: Path) -> Iterator[Story]:
    with (
        FleetSite.open(tmp_path / "fleet", host=HOST) as site,
        ssh_host(tmp_path / "host") as host,
        ExitStack() as stack,
    ):
        yield Story(site, host, tmp_path, stack)
    shutil.rmtree(tmp_path / "host")


@pytest.mark.timeout(900)
def test_a_host_is_flashed_enrols_acts_and_comes_back_from_an_update_that_fails_where_it_acts(
    story: Story,
) -> None:
    (story.directory / "token").write_text(story.site.token(NAME))
    first = story.flash(story.bundle(GOOD), "--token-file", story.directory / "token", "--no-wait")
    assert first.code == 0, first
    launcher = story.launch()
    row = story.site.wait_for_device(NAME, lambda row: row["env_steps"] > 0, timeout_s=WAIT_S)
    assert row["active_precision"] == "int8"
    assert story.site.enrollment_counters()["enrolled"] == 1
    wait_until(lambda: story.slots()["trial"] is None, lambda: str(story.slots()))
    assert story.flash(story.bundle(GOOD)).items[0]["outcome"] == "unchanged"

    second = story.flash(story.bundle(BROKEN))
    assert second.code == 1, second
    assert second.items[0]["outcome"] == "rolled_back"
    assert story.host.running == GOOD
    assert any(FAULT in line for line in launcher.lines)
    back = [entry for entry in story.slots()["history"] if entry["happening"] == "rolled_back"]
    assert len(back) == 1
    again = story.site.wait_for_device(
        NAME,
        lambda found: found["run_id"] != row["run_id"] and found["env_steps"] > 0,
        timeout_s=WAIT_S,
    )
    assert again["health"] in {"online", "degraded"}  # the rollback is shown for a minute
    wait_until(lambda: bool(story.site.events(NAME, "slot_rolled_back")), lambda: "never told")
    (told,) = story.site.events(NAME, "slot_rolled_back")
    assert back[0]["reason"] in told["message"]
    assert launcher.stop() == 0
    code, report = story.site.reproduce(NAME)
    assert (code, report["differing"]) == (0, 0)
