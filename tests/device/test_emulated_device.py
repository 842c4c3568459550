"""A Raspberry Pi without one: aarch64 under emulation, flashed over SSH, from blank to rolled back.

One story, told in order: each test goes on where the one before left the device.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from device.binfmt import aarch64_programs
from device.bundles import make_bundle
from device.emulated_device import EmulatedDevice, emulated_device
from device.fleet_site import Answer, FleetSite, Item, shoal, wait_until
from device.reef_env import BROKEN, FAULT, GOOD
from device.root_cache import RootCache
from device.roots import aarch64_root
from device.shell import SshKey

NAME = "pi-7"
HOST = "127.0.0.1"
WAIT_S = 1200.0

pytestmark = [pytest.mark.device, pytest.mark.timeout(1800)]


@dataclass(frozen=True, slots=True)
class Story:
    """The fleet, and its one device."""

    site: FleetSite
    device: EmulatedDevice
    directory: Path

    def bundle(self, version: str) -> Path:
        return make_bundle(self.site, self.directory, arch="aarch64", version=version)

    def flash(self, bundle: Path, *more: str | Path) -> Answer:
        """`shoal flash ssh`, as an operator types it for a host without systemd."""
        shell = self.device.shell
        return shoal(
            *("flash", "ssh", f"{shell.user}@{HOST}:{shell.port}", "--bundle", bundle),
            *("--identity", shell.key.private, "--known-hosts", shell.known_hosts),
            *("--fleet", self.site.directory, "--no-systemd", "-o", "json", *more),
            timeout_s=WAIT_S,
        )

    def slots(self) -> Item:
        """What the device says of its slots."""
        said = self.device.run("/opt/shoal/bin/shoal-slots status -o json")
        item: Item = json.loads(said)["items"][0]
        return item


@pytest.fixture(scope="module")
def story(cache: RootCache, workplace: Path, key: SshKey) -> Iterator[Story]:
    root = aarch64_root(cache)
    with (
        aarch64_programs(),
        FleetSite.open(workplace / "fleet", host=HOST) as site,
        emulated_device(root, workplace / "pi", key) as device,
    ):
        yield Story(site, device, workplace)


def test_a_blank_device_is_flashed_over_ssh_enrols_and_acts_in_int8(story: Story) -> None:
    assert story.device.run("uname -m").strip() == "aarch64"
    (story.directory / "token").write_text(story.site.token(NAME))
    answer = story.flash(
        story.bundle(GOOD),
        *("--device-id", NAME, "--token-file", story.directory / "token", "--no-wait"),
    )
    assert answer.code == 0, answer
    assert answer.items[0]["outcome"] == "on_trial", answer
    # What systemd would do.
    story.device.run("setsid /opt/shoal/bin/shoal-slots run </dev/null >/var/log/shoal.log 2>&1 &")
    row = story.site.wait_for_device(NAME, lambda row: row["env_steps"] > 0, timeout_s=WAIT_S)
    assert row["active_precision"] == "int8"
    assert story.site.enrollment_counters()["enrolled"] == 1
    assert story.device.run("ls /var/lib/shoal").split().count("enrolment-token") == 0
    wait_until(lambda: story.slots()["trial"] is None, lambda: str(story.slots()))
    assert story.slots()["history"][-1]["happening"] == "committed"


def test_it_streams_to_the_learner_and_takes_the_weights_that_are_pushed(story: Story) -> None:
    before = story.site.device(NAME)
    assert before is not None
    row = story.site.wait_for_device(
        NAME,
        lambda row: row["swaps"] > before["swaps"] and row["env_steps"] > before["env_steps"],
    )
    assert row["active_version"] > before["active_version"]
    assert row["policy_rejections"] == 0
    audit = story.site.ask("fleet", "audit").items
    assert all(item["balanced"] for item in audit), audit
    assert any(item["trained"] > 0 for item in audit), audit


def test_its_decisions_come_out_again_bit_for_bit_on_the_learner_s_machine(story: Story) -> None:
    code, report = story.site.reproduce(NAME)
    print(f"aarch64, {NAME}: {report}")  # noqa: T201 - the figure, for `pytest -s`
    assert code == 0
    assert report["reproduced"]
    assert report["differing"] == 0
    assert report["decisions"] > 1000


def test_an_update_that_fails_where_it_acts_rolls_back_by_itself_and_says_why(story: Story) -> None:
    before = story.site.device(NAME)
    assert before is not None
    answer = story.flash(story.bundle(BROKEN))
    assert answer.code == 1, answer
    (result,) = answer.items
    assert result["outcome"] == "rolled_back", answer
    assert "died" in result["reason"] or "code" in result["reason"], answer
    assert int(story.device.run(f"grep -cF {shlex.quote(FAULT)} /var/log/shoal.log")) > 0
    slots = story.slots()
    running = slots["slots"][slots["current"]]
    assert running["release"]["bundle_version"] == GOOD
    back = [entry for entry in slots["history"] if entry["happening"] == "rolled_back"]
    assert len(back) == 1
    assert back[0]["reason"]
    assert slots["trial"] is None
    # It acts again, and the fleet knows it as another run of the same device.
    row = story.site.wait_for_device(
        NAME,
        lambda row: row["run_id"] != before["run_id"] and row["env_steps"] > 0,
        timeout_s=WAIT_S,
    )
    assert row["health"] in {"online", "degraded"}  # the rollback is shown for a minute
    wait_until(lambda: bool(story.site.events(NAME, "slot_rolled_back")), lambda: "never told")
    (told,) = story.site.events(NAME, "slot_rolled_back")
    assert back[0]["reason"] in told["message"]
    code, report = story.site.reproduce(NAME)
    assert (code, report["differing"]) == (0, 0)
