"""How a device writes its chunks: in the form that costs the least of those its learner reads."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final, Literal

from shoal.packing import BALANCED, SMALLEST, Compression, Packing
from shoal.trajectory import Chunk, encode_chunk, encode_columns
from shoal.v1 import trajectory_pb2 as pb

_COMPRESSIONS: Final[Mapping[str, Compression]] = {"balanced": BALANCED, "smallest": SMALLEST}


class ChunkEncoder:
    """Encodes chunks, one after the other. Used by the control thread.

    Until the learner says what it reads, each is written as every learner reads it. What is
    spooled already stays as it is.

    encoder = ChunkEncoder("balanced", lambda: appetite.codecs)
    spool.append(encoder.encode(chunk), chunk.policy_version)
    """

    def __init__(
        self, compression: Literal["balanced", "smallest"], codecs: Callable[[], Collection[int]]
    ) -> None:
        """Nothing was encoded yet.

        Args:
            compression: What is worth compressing.
            codecs: That the learner reads besides `CODEC_ZSTD`; asked for each chunk.
        """
        self._packing = Packing(_COMPRESSIONS[compression])
        self._codecs = codecs

    def encode(self, chunk: Chunk) -> bytes:
        """The body of a chunk's envelope."""
        if pb.CODEC_COLUMNS in self._codecs():
            return encode_columns(chunk, self._packing)
        return encode_chunk(chunk)
