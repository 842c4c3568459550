"""What a device does once, at its first boot: takes bundle and token off the card, installs.

The script is the same for cloud-init and for the first-run script. It is safe to run again: what
was taken is gone from the card, and what was installed is marked.
"""

from __future__ import annotations

from shoalctl.flash.edge_files import edge_text

DIRECTORY = "shoal"
"""The directory of the boot partition that holds what is ours."""

TOKEN_NAME, BUNDLE_NAME, DIGEST_NAME = "enrolment-token", "bundle", "bundle.sha256"
SCRIPT_PATH = "/usr/local/sbin/shoal-first-boot"
STATE_DIRECTORY = "/var/lib/shoal"
INSTALLER = "install.sh"
"""What a bundle is installed with: at its top, run as root with `SHOAL_ENROLMENT_TOKEN_FILE`."""

SCRIPT_NAME = "first-boot.sh"


def first_boot_script(volume_id: str) -> str:
    """The script of a device's first boot.

    Args:
        volume_id: Serial number of the boot partition's file system, as `1A2B-3C4D`: how the
            script finds it where the system doesn't mount it.
    """
    script = edge_text(SCRIPT_NAME)
    for name, value in {
        "@STATE@": STATE_DIRECTORY,
        "@DIRECTORY@": DIRECTORY,
        "@VOLUME@": volume_id,
        "@TOKEN@": TOKEN_NAME,
        "@BUNDLE@": BUNDLE_NAME,
        "@DIGEST@": DIGEST_NAME,
        "@INSTALLER@": INSTALLER,
    }.items():
        script = script.replace(name, value)
    return script
