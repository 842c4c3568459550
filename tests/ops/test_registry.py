"""The list of admitted devices: a file that people and programs change."""

import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import ConfigError
from shoal.topics import RESERVED_NAMES
from shoalctl.pki.registry import DeviceRegistry, parse_registry

DEVICE_IDS = st.from_regex(r"[a-z0-9][a-z0-9-]{0,20}", fullmatch=True).filter(
    lambda name: name not in RESERVED_NAMES
)


def test_a_missing_file_admits_nobody(tmp_path: Path) -> None:
    assert DeviceRegistry(tmp_path / "devices").device_ids() == ()


def test_devices_are_added_and_removed(tmp_path: Path) -> None:
    registry = DeviceRegistry(tmp_path / "made" / "devices")
    registry.add("pi-2", "pi-1")
    registry.add("pi-1", "pi-3")
    registry.remove("pi-2", "never-there")
    assert registry.device_ids() == ("pi-1", "pi-3")


def test_a_bad_name_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    registry = DeviceRegistry(tmp_path / "devices")
    with pytest.raises(ConfigError, match="reserved"):
        registry.add("pi-1", "learner")
    assert registry.device_ids() == ()


def test_comments_and_empty_lines_are_left_out() -> None:
    assert parse_registry("# ours\n\n pi-1  # in the shed\npi-1\n", "devices") == ("pi-1",)


def test_a_bad_line_is_named_by_file_and_number(tmp_path: Path) -> None:
    path = tmp_path / "devices"
    path.write_text("pi-1\nPi 2\n")
    with pytest.raises(ConfigError, match=r"devices, line 2: device id 'Pi 2'"):
        DeviceRegistry(path).device_ids()


def test_bytes_that_are_no_text_are_one_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "devices"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="can't read the device list"):
        DeviceRegistry(path).device_ids()


def test_a_directory_that_cannot_be_made_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="can't write the device list"):
        DeviceRegistry(tmp_path / "file" / "devices").add("pi-1")


@given(st.lists(DEVICE_IDS))
def test_what_is_written_is_read_again(device_ids: list[str]) -> None:
    text = "".join(f"{device_id}\n" for device_id in device_ids)
    assert parse_registry(text, "devices") == tuple(sorted(set(device_ids)))


def test_devices_added_at_the_same_time_are_all_there(tmp_path: Path) -> None:
    registry = DeviceRegistry(tmp_path / "devices")
    names = [f"pi-{number}" for number in range(16)]
    threads = [threading.Thread(target=registry.add, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert registry.device_ids() == tuple(sorted(names))
