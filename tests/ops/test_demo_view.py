"""How a demo is shown while it runs, where there is no terminal: lines."""

from __future__ import annotations

import io

from shoal.v1 import fleet_pb2
from shoalctl.demo.picture import Picture
from shoalctl.demo.view import PlainView

TRAINING = fleet_pb2.Training(env_steps=2048, episodes=7, return_mean=31.5, return_window=7)


def test_plain_lines_come_once_a_second_and_notes_at_once() -> None:
    stream = io.StringIO()
    picture = Picture("CartPole-v1", 475.0, training=TRAINING)
    with PlainView(stream) as view:
        for elapsed_s in (0.0, 0.4, 0.8, 1.2):
            picture.elapsed_s = elapsed_s
            view.show(picture)
        picture.notes.append("learner ended with SIGKILL; started again")
        view.show(picture)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 3
    assert "31.5/475" in lines[0]
    assert "SIGKILL" in lines[2]
