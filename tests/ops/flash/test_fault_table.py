"""The fault table of `shoal flash image`: whatever fails, and whenever, no card is half bootable.

Generated from the list of stages and from what happens in each. Real here: `kill -9`, damage to
what was written, and (in `test_loop_device.py`) block devices. Simulated by a wrapper around the
operating system: errors of a disk, short writes, bytes that read back wrongly, and a power cut.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import flash_faults
import pytest
from flash_faults import Event, FaultyIo, PowerCut, PowerCutIo, flash
from flash_images import BOOT_AT, IMAGE_BYTES, MIB, ROOT_AT, TRIXIE, make_image, needs_mtools

from shoal.errors import ConfigError, FlashFailed, ShoalError
from shoalctl.flash.image.flasher import FlashInterrupted
from shoalctl.flash.image.stages import Stage

pytestmark = needs_mtools

EVENTS = {
    Stage.ERASE: {"begin", "write", "sync"},
    Stage.WRITE: {"begin", "write", "sync", "advance"},
    Stage.VERIFY: {"begin", "open", "read", "advance"},
    Stage.SEEDS: {"begin", "advance"},
    Stage.COMMIT: {"begin", "write", "sync", "open", "read"},
}
"""What happens in each stage that touches the target; a test checks that this is all."""

CASES = [(stage, kind) for stage, kinds in EVENTS.items() for kind in sorted(kinds)]
DISK_ERRORS = {
    "vanished": (errno.ENODEV, "gone"),
    "failing": (errno.EIO, "fails"),
    "full": (errno.ENOSPC, "no room"),
}


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_image(tmp_path_factory.mktemp("image") / "card.img", TRIXIE, table="gpt")


@pytest.fixture(scope="module")
def expected(image: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    card = tmp_path_factory.mktemp("expected") / "card"
    flash(image, card)
    return card.read_bytes()


def raising(event: Event, error: BaseException) -> FaultyIo:
    def hook(happening: Event) -> None:
        if happening == event:
            raise error

    return FaultyIo(hook)


def is_complete(card: Path, expected: bytes) -> bool:
    return card.read_bytes() == expected  # never in an assertion: a diff of it takes minutes


def assert_not_half_bootable(card: Path, expected: bytes) -> None:
    """Block 0 holds nothing, or everything else is as it should be."""
    if is_complete(card, expected):
        return
    content = card.read_bytes()
    assert content[:512] == bytes(512)[: len(content)]
    if b"EFI PART" in content:  # the rest of the partition table is written right before block 0
        complete = expected[:512] + content[512:] == expected
        assert complete or content[512:1024] == bytes(512)


def assert_resumes(image: Path, card: Path, expected: bytes) -> None:
    if is_complete(card, expected) and not card.with_name("card.flash-journal").exists():
        return
    flash(image, card, resume=True)
    assert is_complete(card, expected)
    assert not card.with_name("card.flash-journal").exists()


def test_the_table_knows_everything_that_happens(image: Path, tmp_path: Path) -> None:
    io = FaultyIo()
    flash(image, tmp_path / "card", io)
    happened = {(event.stage, event.kind) for event in io.events if event.stage.touches_target}
    assert happened == set(CASES)


@pytest.mark.parametrize(("stage", "kind"), CASES)
def test_kill_9_leaves_no_half_bootable_card(
    stage: Stage, kind: str, image: Path, expected: bytes, tmp_path: Path
) -> None:
    card = tmp_path / "card"
    arguments = json.dumps([str(image), str(card), stage, kind, 0])
    finished = subprocess.run(
        [sys.executable, flash_faults.__file__, arguments],
        check=False,
        capture_output=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        timeout=60,
    )
    assert finished.returncode == -signal.SIGKILL, finished.stderr.decode()
    assert_not_half_bootable(card, expected)
    assert_resumes(image, card, expected)


@pytest.mark.parametrize("fault", DISK_ERRORS)
@pytest.mark.parametrize(("stage", "kind"), CASES)
def test_a_disk_that_fails_is_named_and_can_be_resumed(
    stage: Stage, kind: str, fault: str, image: Path, expected: bytes, tmp_path: Path
) -> None:
    card = tmp_path / "card"
    number, word = DISK_ERRORS[fault]
    error = OSError(number, os.strerror(number))
    with pytest.raises(FlashFailed, match=word) as caught:
        flash(image, card, raising(Event(stage, kind, 0), error))
    message = str(caught.value)
    assert message.startswith(f"{stage}: ")
    assert "NOT BOOTABLE" in message
    assert "--resume" in message
    assert caught.value.exit_code == 1
    assert_not_half_bootable(card, expected)
    assert_resumes(image, card, expected)


@pytest.mark.parametrize(("stage", "kind"), CASES)
def test_ctrl_c_says_that_the_card_is_not_bootable_and_how_to_go_on(
    stage: Stage, kind: str, image: Path, expected: bytes, tmp_path: Path
) -> None:
    card = tmp_path / "card"
    with pytest.raises(FlashInterrupted, match=r"NOT BOOTABLE.*--resume"):
        flash(image, card, raising(Event(stage, kind, 0), KeyboardInterrupt()))
    assert_not_half_bootable(card, expected)
    assert_resumes(image, card, expected)


@pytest.mark.parametrize("stage", [Stage.CHECK, Stage.PREPARE])
def test_ctrl_c_before_anything_was_written_says_so(
    stage: Stage, image: Path, tmp_path: Path
) -> None:
    card = tmp_path / "card"
    card.write_bytes(b"precious")
    with pytest.raises(FlashInterrupted, match="nothing was written"):
        flash(
            image,
            card,
            raising(Event(stage, "advance", 0), KeyboardInterrupt()),
            yes=True,
            expect_size="8",
        )
    assert card.read_bytes() == b"precious"


@pytest.mark.parametrize("nth", range(0, 60, 2))
def test_a_power_cut_leaves_no_half_bootable_card(
    nth: int, image: Path, expected: bytes, tmp_path: Path
) -> None:
    card = tmp_path / "card"
    io = PowerCutIo(card, nth, seed=nth)
    try:
        flash(image, card, io)
    except PowerCut:
        io.lose()
        assert_not_half_bootable(card, expected)
        assert_resumes(image, card, expected)
    assert is_complete(card, expected)


@pytest.mark.parametrize("limit", [100_003, 4096, 1 << 20])
def test_short_writes_are_continued(
    limit: int, image: Path, expected: bytes, tmp_path: Path
) -> None:
    flash(image, tmp_path / "card", FaultyIo(write_limit=limit))
    assert is_complete(tmp_path / "card", expected)


def test_a_disk_that_takes_no_byte_is_given_up(
    image: Path, expected: bytes, tmp_path: Path
) -> None:
    with pytest.raises(FlashFailed, match=r"erase: .*NOT BOOTABLE"):
        flash(image, tmp_path / "card", FaultyIo(write_limit=0))
    assert_resumes(image, tmp_path / "card", expected)


@pytest.mark.parametrize(
    "offset", [0, 511, 4096, BOOT_AT, ROOT_AT + 12345, IMAGE_BYTES - 1, IMAGE_BYTES - 512]
)
def test_a_flipped_byte_on_read_back_is_found(
    offset: int, image: Path, expected: bytes, tmp_path: Path
) -> None:
    card = tmp_path / "card"
    with pytest.raises(FlashFailed, match="read back otherwise") as caught:
        flash(image, card, FaultyIo(flip=(Stage.VERIFY, offset)))
    assert str(offset // (4 * MIB) * 4 * MIB) in str(caught.value)
    assert card.read_bytes()[:512] == bytes(512)
    assert_resumes(image, card, expected)


@pytest.mark.parametrize("offset", [0, 510, 600])
def test_a_partition_table_that_reads_back_wrongly_is_taken_back(
    offset: int, image: Path, expected: bytes, tmp_path: Path
) -> None:
    card = tmp_path / "card"
    with pytest.raises(FlashFailed, match="partition table reads back otherwise"):
        flash(image, card, FaultyIo(flip=(Stage.COMMIT, offset)))
    assert card.read_bytes()[:512] == bytes(512)
    assert_resumes(image, card, expected)


def test_a_byte_that_really_changed_on_the_card_is_found_and_written_again(
    image: Path, expected: bytes, tmp_path: Path
) -> None:
    card = tmp_path / "card"

    def damage(event: Event) -> None:
        if event == Event(Stage.VERIFY, "begin", 0):
            with card.open("r+b") as file:
                file.seek(ROOT_AT + 7)
                file.write(b"\xff\x00\xff\x00")

    with pytest.raises(FlashFailed, match="read back otherwise"):
        flash(image, card, FaultyIo(damage))
    assert_resumes(image, card, expected)


def test_a_seed_file_that_really_changed_on_the_card_is_found(
    image: Path, expected: bytes, tmp_path: Path
) -> None:
    card = tmp_path / "card"

    def damage(event: Event) -> None:
        if event == Event(Stage.SEEDS, "begin", 0):
            content = card.read_bytes()
            with card.open("r+b") as file:
                file.seek(content.index(flash_faults.TOKEN.encode()))
                file.write(b"X")

    with pytest.raises(FlashFailed, match=r"seeds: shoal/enrolment-token on the card") as caught:
        flash(image, card, FaultyIo(damage))
    assert flash_faults.TOKEN not in str(caught.value)
    assert card.read_bytes()[:512] == bytes(512)


def test_a_disk_that_was_mounted_meanwhile_is_not_written(image: Path, tmp_path: Path) -> None:
    busy = raising(Event(Stage.PREPARE, "open", 0), OSError(errno.EBUSY, "busy"))
    with pytest.raises(FlashFailed, match="mounted just now"):
        flash(image, tmp_path / "card", busy)
    assert not (tmp_path / "card").exists()


def test_a_file_that_is_too_small_is_refused_before_it_is_written(
    image: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"too small .*--size is 8\.0 MB") as caught:
        flash(image, tmp_path / "card", size="8MB")
    assert caught.value.exit_code == 4
    assert not (tmp_path / "card").exists()


def test_a_file_may_be_made_larger_than_the_image(
    image: Path, expected: bytes, tmp_path: Path
) -> None:
    flash(image, tmp_path / "card", size="32MiB")
    content = (tmp_path / "card").read_bytes()
    same = content[:IMAGE_BYTES] == expected
    assert same
    assert len(content) == 32 * MIB


@pytest.mark.parametrize(
    "arguments", [{"yes": True}, {"yes": False}, {"yes": True, "expect_size": "9"}]
)
def test_a_file_that_exists_is_not_overwritten_unless_it_is_meant(
    arguments: dict[str, bool], image: Path, tmp_path: Path
) -> None:
    card = tmp_path / "card"
    card.write_bytes(b"precious")
    with pytest.raises(ShoalError, match="expect"):
        flash(image, card, **arguments)  # type: ignore[arg-type]
    assert card.read_bytes() == b"precious"


def test_a_card_is_flashed_again(image: Path, expected: bytes, tmp_path: Path) -> None:
    card = tmp_path / "card"
    card.write_bytes(os.urandom(20 * MIB))
    flash(image, card, yes=True, expect_size=str(20 * MIB))
    assert is_complete(card, expected)


def test_what_an_interrupted_flash_wrote_is_not_written_again(
    image: Path, expected: bytes, tmp_path: Path
) -> None:
    card = tmp_path / "card"
    with pytest.raises(FlashFailed):
        flash(image, card, raising(Event(Stage.VERIFY, "begin", 0), OSError(errno.EIO, "x")))
    io = FaultyIo()
    report = flash(image, card, io, resume=True)
    writes = [event for event in io.events if event.stage is Stage.WRITE and event.kind == "write"]
    assert writes == []
    assert report.flashed is not None
    assert report.flashed.skipped_bytes == IMAGE_BYTES
    assert is_complete(card, expected)


def test_a_journal_is_no_proof(image: Path, expected: bytes, tmp_path: Path) -> None:
    """A card that was swapped for another one while a flash was interrupted is found out."""
    card = tmp_path / "card"
    with pytest.raises(FlashFailed):
        flash(image, card, raising(Event(Stage.VERIFY, "begin", 0), OSError(errno.EIO, "x")))
    card.write_bytes(bytes(IMAGE_BYTES))
    with pytest.raises(FlashFailed, match="read back otherwise"):
        flash(image, card, resume=True)
    assert_resumes(image, card, expected)


def test_there_is_nothing_to_resume_without_a_journal(image: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no interrupted flash"):
        flash(image, tmp_path / "card", resume=True)


def test_a_flash_that_fails_leaves_no_thread_behind(image: Path, tmp_path: Path) -> None:
    before = threading.active_count()
    error = OSError(errno.EIO, "x")
    with pytest.raises(FlashFailed) as caught:
        flash(image, tmp_path / "card", raising(Event(Stage.WRITE, "advance", 0), error))
    assert caught.value.__traceback__ is not None  # what keeps frames, and generators, alive
    assert threading.active_count() == before


def test_two_flashes_of_one_file_do_not_mix(image: Path, tmp_path: Path) -> None:
    card = tmp_path / "card"
    second: list[str] = []

    def hook(event: Event) -> None:
        if event == Event(Stage.WRITE, "advance", 0):
            with pytest.raises(FlashFailed, match="another process") as caught:
                flash(image, card, resume=True)
            second.append(str(caught.value))

    flash(image, card, FaultyIo(hook))
    assert len(second) == 1
