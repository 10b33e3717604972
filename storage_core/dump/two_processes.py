"""The lines of a large log's batches by two processes, which make every other piece and write in turns.

The pieces begin where the offset index says that batches do. That is believed only if the piece before ends exactly there;
otherwise both stop, and the caller goes on from where the text ends.
"""

from __future__ import annotations

import os
import pickle
import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from storage_core.errors import CorruptError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from storage_core.dump.log_text import LogText


_GO_ON: Final = b"g"
_STOP: Final = b"s"
_PROCESSES: Final = 2
# The entries of an offset index, as in `segment.offset_index`, which needs numpy: relative offset, position.
_ENTRY: Final = struct.Struct(">ii")


class Piece(NamedTuple):
    """What was found in one piece of a log.

    Attributes:
        number: Its number among the pieces.
        end_bytes: Where its text ends.
        has_damage: Whether any CRC is wrong.
        failure: Why its text ends early.
    """

    number: int
    end_bytes: int
    has_damage: bool
    failure: CorruptError | None


def piece_borders(index: bytes, piece_bytes: int, end_bytes: int) -> list[int]:
    """Positions of batches, about ``piece_bytes`` apart, that an offset index names; the first is 0.

    They end before a piece that is twice as long, because the text of a piece is held until its turn comes.
    """
    borders = [0]
    for _, position_bytes in _ENTRY.iter_unpack(index[: len(index) - len(index) % _ENTRY.size]):
        if borders[-1] + piece_bytes <= position_bytes < end_bytes:
            if position_bytes > borders[-1] + 2 * piece_bytes:
                break
            borders.append(position_bytes)
    return borders


def write_in_turns(text: LogText, borders: Sequence[int], write: Callable[[bytes], object]) -> list[Piece]:
    """Write the text of a log up to the last border, with a forked process.

    Args:
        text: The text of the whole log.
        borders: Where the pieces begin, and where the last one ends.
        write: Writes to where the forked process writes, too; not buffered.

    Returns:
        The pieces that were written, in order.

    Raises:
        BrokenPipeError: Nobody reads any longer.
        OSError: The output refused, the log cannot be read, or the other process was ended from outside.
    """
    turns = [os.pipe() for _ in range(_PROCESSES)]
    results_in, results_out = os.pipe()
    child = os.fork()
    number = 0 if child else 1
    mine, others = turns[number][0], turns[1 - number][1]
    for descriptor in (turns[number][1], turns[1 - number][0], results_out if child else results_in):
        os.close(descriptor)
    worker = _Worker(text, borders, write, mine, others)
    if not child:
        _run_child(worker, number, results_out)
    pieces: list[Piece] = []
    try:
        pieces = worker.work(number)
    finally:
        # Without its turn, the other process ends.
        os.close(mine)
        os.close(others)
        with open(results_in, "rb") as results:
            data = results.read()
        os.waitpid(child, 0)
    if not data:
        raise ChildProcessError("The process that makes half of the text was ended from outside. Try again.")
    others_pieces = pickle.loads(data)  # noqa: S301  (from a fork of this process)
    if isinstance(others_pieces, BaseException):
        raise others_pieces
    return sorted([*pieces, *others_pieces])


def _run_child(worker: _Worker, number: int, results: int) -> None:
    """Do the child's part, and end it without what the parent would do at its end."""
    try:
        try:
            done: object = worker.work(number)
        except BaseException as error:  # noqa: BLE001  (the parent raises it)
            done = error
        with open(results, "wb") as stream:
            pickle.dump(done, stream)
    finally:
        os._exit(0)


class _Worker:
    def __init__(
        self,
        text: LogText,
        borders: Sequence[int],
        write: Callable[[bytes], object],
        mine: int,
        others: int,
    ) -> None:
        self._text = text
        self._borders = borders
        self._write = write
        self._mine = mine
        self._others = others

    def work(self, first: int) -> list[Piece]:
        """Write every other piece, each in its turn, until one ends early."""
        pieces = []
        for number in range(first, len(self._borders) - 1, _PROCESSES):
            text = self._text.part(*self._borders[number : number + 2])
            lines, failure = _lines_of(text)
            if number and os.read(self._mine, 1) != _GO_ON:
                break
            self._write(lines)
            pieces.append(Piece(number, text.valid_bytes, text.has_damage, failure))
            goes_on = failure is None and text.valid_bytes == self._borders[number + 1]
            self._pass_on(_GO_ON if goes_on else _STOP)
            if not goes_on:
                break
        return pieces

    def _pass_on(self, word: bytes) -> None:
        try:
            os.write(self._others, word)
        except BrokenPipeError:
            # The other process has written its last piece.
            return


def _lines_of(text: LogText) -> tuple[bytes, CorruptError | None]:
    """All lines of a piece, and why they end early."""
    pieces: list[bytes] = []
    try:
        pieces.extend(text.pieces())
    except CorruptError as error:
        return b"".join(pieces), error
    return b"".join(pieces), None
