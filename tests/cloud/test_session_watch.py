from __future__ import annotations

import pytest

from cloud_learner.uplink.session_watch import Heard, needs_renewal


@pytest.mark.parametrize(
    ("heard", "expected"),
    [
        (Heard(connected_s=0.0, chunk_s=10.0, report_s=99.0, waiting=3), True),
        (Heard(connected_s=0.0, chunk_s=None, report_s=99.0, waiting=3), True),
        (Heard(connected_s=0.0, chunk_s=10.0, report_s=99.0, waiting=0), False),
        (Heard(connected_s=0.0, chunk_s=90.0, report_s=99.0, waiting=3), False),
        (Heard(connected_s=90.0, chunk_s=10.0, report_s=99.0, waiting=3), False),
        (Heard(connected_s=None, chunk_s=10.0, report_s=99.0, waiting=3), False),
        (Heard(connected_s=0.0, chunk_s=10.0, report_s=None, waiting=3), False),
        (Heard(connected_s=0.0, chunk_s=10.0, report_s=5.0, waiting=3), False),
    ],
)
def test_a_session_is_renewed_only_if_devices_report_and_hold_chunks_that_do_not_come(
    heard: Heard, *, expected: bool
) -> None:
    assert needs_renewal(heard, now_s=100.0, after_s=60.0) is expected
