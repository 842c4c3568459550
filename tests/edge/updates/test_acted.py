from __future__ import annotations

from dataclasses import replace

from strategies import cartpole_spec, make_chunk

from edge_agent.updates.acted import Acted
from shoal.trajectory import Chunk


def chunk(version: int, digest: bytes = b"d" * 32) -> Chunk:
    return replace(make_chunk(cartpole_spec()), policy_version=version, policy_digest=digest)


def test_what_was_acted_counts_for_the_version_and_the_form_that_acted() -> None:
    acted, kept = Acted(), list[Chunk]()
    keep = acted.counting(kept.append)
    per_chunk = len(chunk(1).episodes)
    for _ in range(3):
        keep(chunk(7))
    assert (acted.now.version, acted.now.chunks) == (7, 3)
    assert acted.now.episodes == 3 * per_chunk
    keep(chunk(7, b"t" * 32))
    assert (acted.now.digest, acted.now.chunks) == (b"t" * 32, 1)
    keep(chunk(8))
    assert (acted.now.version, acted.now.chunks) == (8, 1)
    assert len(kept) == 5


def test_who_listens_hears_of_each_chunk() -> None:
    acted, heard = Acted(), list[int]()
    with acted.listening(lambda: heard.append(acted.now.chunks)):
        acted.note(chunk(7))
        acted.note(chunk(7))
    acted.note(chunk(7))
    assert heard == [1, 2]
