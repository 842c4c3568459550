"""The episodes that a learner's journal holds whole, for people and programs."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, cast

from shoalctl.output import Column, Item, Listing, Value
from shoalctl.views.cells import count, number

if TYPE_CHECKING:
    from cloud_learner.journal.episodes import WholeEpisode


def episode_list(
    episodes: Iterable[WholeEpisode], there: Collection[int], *, empty: str
) -> Listing:
    """`shoal reproduce --episodes`.

    Args:
        episodes: Of a run, in the order in which they ended.
        there: The policy versions that are kept.
        empty: What to say if there are none.
    """
    return Listing(
        schema="shoal.v1.JournaledEpisodes",
        items=[episode_item(index, each, there) for index, each in enumerate(episodes)],
        columns=_COLUMNS,
        empty=empty,
    )


def episode_item(index: int, episode: WholeEpisode, there: Collection[int]) -> dict[str, Value]:
    """One episode; `index` is what `--episode` takes."""
    versions = sorted({int(version) for version in episode.policy_versions})
    return {
        "episode": index,
        "env": episode.env,
        "first_chunk": episode.first.seq,
        "last_chunk": episode.last.seq,
        "steps": len(episode.rewards),
        "return": float(episode.rewards.sum(dtype="float64")),
        "policy_versions": list(versions),
        "policies_kept": all(version in there for version in versions),
        "terminated": episode.terminated,
        "truncated": episode.truncated,
    }


def _versions(item: Item) -> str:
    versions = cast("list[int]", item["policy_versions"])
    low, high = versions[0], versions[-1]
    return f"v{low}" if low == high else f"v{low} to v{high}"


_COLUMNS = (
    count("EPISODE", "episode"),
    count("ENV", "env"),
    Column("CHUNKS", lambda item: f"{item['first_chunk']} to {item['last_chunk']}"),
    count("STEPS", "steps"),
    Column("RETURN", lambda item: f"{number(item['return']):.1f}", right=True),
    Column("POLICIES", _versions),
    Column("COMPARABLE", lambda item: "yes" if item["policies_kept"] else "not any more"),
)
