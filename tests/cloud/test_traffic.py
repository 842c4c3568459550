from __future__ import annotations

from cloud_learner.uplink.traffic import Traffic, TrafficMeter


def test_bytes_and_refreshes_add_up_by_caller_and_in_total() -> None:
    meter = TrafficMeter()
    assert meter.total() == Traffic()
    meter.count("pi-1", 100)
    meter.count("pi-2", 10)
    meter.count("pi-1", 1)
    meter.count_refresh("pi-1", 400)
    assert meter.of("pi-1") == Traffic(bytes_down=101, bytes_down_fp32=400, refreshes=1)
    assert meter.of("pi-2") == Traffic(bytes_down=10)
    assert meter.of("pi-3") == Traffic()
    assert meter.total() == Traffic(bytes_down=111, bytes_down_fp32=400, refreshes=1)
