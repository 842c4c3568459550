"""Samples of chunks that lie as columns."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from google.protobuf.message import Message
from strategies import cartpole_spec, make_chunk

from shoal.packing import BALANCED, SMALLEST, Packing
from shoal.trajectory import Chunk, encode_columns
from shoal.v1 import columns_pb2 as pb


def column_chunk() -> bytes:
    """A small one."""
    return encode_columns(make_chunk(cartpole_spec()), Packing(BALANCED))


def chunk_of_every_form() -> Chunk:
    """With memory and priorities, and columns that are worth each form."""
    chunk = make_chunk(cartpole_spec(), steps=64)
    shape = chunk.rewards.shape
    return replace(
        chunk,
        actions=np.arange(chunk.rewards.size).reshape(shape) % 2,
        log_probs=np.linspace(-1, -0.5, chunk.rewards.size, dtype=np.float16)
        .astype(np.float32)
        .reshape(shape),
        observations=np.full_like(chunk.observations, 0.25) * (chunk.observations > 0),
        rewards=np.ones(shape, np.float32),
        initial_state=np.linspace(-1, 1, chunk.envs * 3, dtype=np.float32).reshape(-1, 3),
        priorities=np.arange(chunk.rewards.size, dtype=np.float32).reshape(shape),
    )


def column_samples() -> dict[str, Message]:
    """By name, as other samples."""
    chunk = pb.ColumnChunk.FromString(column_chunk())
    every = encode_columns(chunk_of_every_form(), Packing(SMALLEST))
    return {
        "ColumnChunk": chunk,
        "ColumnChunk.forms": pb.ColumnChunk.FromString(every),
        "ColumnLayout": chunk.layout,
        "Column": chunk.layout.observations,
    }
