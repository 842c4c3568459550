"""`cmdline.txt`, the kernel's command line of a Raspberry Pi: changed so that twice is as once."""

from __future__ import annotations

FIRST_RUN_PATH = "/boot/firmware/firstrun.sh"
_RUN, _SEED, _COUNTRY = "systemd.run", "ds=nocloud", "cfg80211.ieee80211_regdom="
_UNIT = "systemd.unit=kernel-command-line.target"


def with_first_run(line: str) -> str:
    """The command line that runs the first-run script once and reboots."""
    words = [word for word in line.split() if not word.startswith(_RUN) and word != _UNIT]
    run = [f"systemd.run={FIRST_RUN_PATH}", "systemd.run_success_action=reboot", _UNIT]
    return " ".join([*words, *run]) + "\n"


def with_instance_id(line: str, instance_id: str) -> str:
    """The command line whose cloud-init instance, if it names one, is `instance_id`.

    What the command line says wins over `meta-data`, and another tool may have named one here.
    """
    words = line.split()
    if not any(word.startswith(_SEED) and ";i=" in word for word in words):
        return line
    return " ".join(_renamed(word, instance_id) for word in words) + "\n"


def with_country(line: str, country: str) -> str:
    """The command line that lets the radio on by the rules of a country."""
    words = [word for word in line.split() if not word.startswith(_COUNTRY)]
    return " ".join([*words, f"{_COUNTRY}{country}"]) + "\n"


def _renamed(word: str, instance_id: str) -> str:
    if not word.startswith(_SEED):
        return word
    parts = (f"i={instance_id}" if part.startswith("i=") else part for part in word.split(";"))
    return ";".join(parts)
