"""A card that boots: flashed to a file, started in a whole emulated machine, twice.

One story, told in order: each test goes on where the one before left the card.
"""

from __future__ import annotations

import mmap
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from device.bundles import make_bundle
from device.fleet_site import FleetSite, said
from device.reef_env import GOOD
from device.root_cache import RootCache
from device.roots import BOOT_AT, Card, card_image
from device.shell import Shell, SshKey
from device.virtual_machine import HOST_FROM_INSIDE, VirtualMachine, virtual_machine
from flash_images import boot_text

NAME, USER = "pi-card", "ops"
ACTING_S = 2400.0

pytestmark = [pytest.mark.device, pytest.mark.timeout(3600)]


@dataclass(frozen=True, slots=True)
class Story:
    """The fleet, and its one card."""

    site: FleetSite
    card: Card
    disk: Path
    token: str
    key: SshKey
    directory: Path

    @contextmanager
    def booted(self, number: int) -> Iterator[VirtualMachine]:
        with virtual_machine(self.card, self.disk, self.directory / f"boot-{number}.log") as found:
            yield found

    def shell(self, machine: VirtualMachine) -> Shell:
        return Shell(USER, machine.ssh_port, self.key, self.directory / "known_hosts")

    def shut_down(self, machine: VirtualMachine) -> None:
        self.shell(machine).try_run("sudo systemctl poweroff")
        machine.wait_until_off()


@pytest.fixture(scope="module")
def story(cache: RootCache, workplace: Path, key: SshKey) -> Iterator[Story]:
    card = card_image(cache)
    with FleetSite.open(workplace / "fleet", host=HOST_FROM_INSIDE) as site:
        token = site.token(NAME)
        yield Story(site, card, workplace / "card", token, key, workplace)


def test_the_image_is_flashed_to_a_file_with_bundle_and_token(story: Story) -> None:
    bundle = make_bundle(story.site, story.directory, arch="x86_64", version=GOOD)
    (story.directory / "token").write_text(story.token)
    report = said(
        *("flash", "image", "--image", story.card.image, "--to", story.disk),
        *("--hostname", NAME, "--user", USER, "--ssh-key", story.key.public),
        *("--fleet", story.site.directory, "--bundle", bundle),
        *("--token-file", story.directory / "token", "-o", "json"),
        timeout_s=600.0,
    ).items[0]
    assert report["verified"]
    assert report["seeded_as"] == "cloud-init"
    assert boot_text(story.disk, "shoal/enrolment-token", BOOT_AT).strip() == story.token


def test_its_first_boot_enrols_from_the_token_acts_and_is_in_the_list(story: Story) -> None:
    with story.booted(1) as machine:
        machine.wait_for("shoal-first-boot: done", timeout_s=ACTING_S)
        row = story.site.wait_for_device(
            NAME, lambda row: row["env_steps"] > 0 and row["swaps"] > 1, timeout_s=ACTING_S
        )
        assert row["health"] == "online"
        assert row["active_precision"] == "int8"
        assert story.site.enrollment_counters()["enrolled"] == 1
        story.shut_down(machine)
    code, report = story.site.reproduce(NAME)
    print(f"x86-64, {NAME}: {report}")  # noqa: T201 - the figure, for `pytest -s`
    assert (code, report["differing"]) == (0, 0)


def test_the_token_and_the_bundle_are_gone_from_the_card(story: Story) -> None:
    listing = subprocess.run(
        ["mdir", "-b", "-a", "-i", f"{story.disk}@@{BOOT_AT}", "::/shoal"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    assert "enrolment-token" not in listing
    assert "bundle" not in listing
    with (
        story.disk.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as card,
    ):
        assert card.find(story.token.encode()) == -1


def test_its_second_boot_acts_again_and_does_not_enrol_again(story: Story) -> None:
    before, counters = story.site.device(NAME), story.site.enrollment_counters()
    assert before is not None
    with story.booted(2) as machine:
        row = story.site.wait_for_device(
            NAME,
            lambda row: row["run_id"] != before["run_id"] and row["env_steps"] > 0,
            timeout_s=ACTING_S,
        )
        assert row["health"] == "online"
        assert "shoal-first-boot" not in machine.said()
        assert story.site.enrollment_counters() == counters
        story.shut_down(machine)
