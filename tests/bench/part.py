"""A part of a measurement in a process of its own, spawned, that answers over a pipe."""

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection as Pipe
from multiprocessing.process import BaseProcess
from typing import Any

ANSWER_S = 900.0


class Part:
    """Work in a process of its own; the last argument of the work is its end of the pipe.

    part = Part(receive, settings)
    part.hear()      # whatever it sends first
    part.tell("go")
    """

    def __init__(self, work: Callable[..., None], *told: object) -> None:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        self._pipe: Pipe = ours
        self._process: BaseProcess = context.Process(target=work, args=(*told, theirs), daemon=True)
        self._process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        """Of its process."""
        return self._process.pid or 0

    def hear(self) -> Any:  # noqa: ANN401 - each part has answers of its own
        """Its next answer."""
        if not self._pipe.poll(ANSWER_S):
            raise SystemExit("a part of the measurement does not answer")
        try:
            return self._pipe.recv()
        except EOFError:
            raise SystemExit("a part of the measurement died; its words are above") from None

    def tell(self, word: object) -> None:
        """Tells it something; whether it still listens does not matter."""
        try:
            self._pipe.send(word)
        except OSError:
            return

    def end(self) -> None:
        """Waits for its end, or ends it."""
        self._process.join(10.0)
        if self._process.is_alive():
            self._process.terminate()
            self._process.join(10.0)
