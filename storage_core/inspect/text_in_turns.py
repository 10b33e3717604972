"""The text of a large log by two processes, which make every other piece and write in turns.

The pieces begin where the offset index says that batches do. That is believed only if the piece before ends exactly there;
otherwise both stop, and the caller goes on from where the text ends.
"""

from __future__ import annotations

import os
import pickle
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from storage_core.errors import CorruptError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from storage_core.inspect.log_text import LogText
    from storage_core.inspect.record_rows import OffsetGaps


_GO_ON: Final = b"g"
_STOP: Final = b"s"
_PROCESSES: Final = 2
# A piece may inflate to more, which is written as it comes, once it is its turn.
_MOST_HELD_BYTES: Final = 64 << 20
# The entries of an offset index, as in `segment.offset_index`, which needs numpy: relative offset, position.
_ENTRY: Final = struct.Struct(">ii")


class Piece(NamedTuple):
    """What was found in one piece of a log.

    Attributes:
        number: Its number among the pieces.
        end_bytes: Where its text ends.
        gaps: Where the records' offsets are not consecutive; None if no records are printed.
    """

    number: int
    end_bytes: int
    has_damage: bool
    gaps: OffsetGaps | None


@dataclass(slots=True)
class Turns:
    """What a process did.

    Attributes:
        pieces: The pieces that it wrote.
        failure: Why the last of them ends early.
    """

    pieces: list[Piece] = field(default_factory=list)
    failure: CorruptError | None = None


def piece_borders(index: bytes, piece_bytes: int, end_bytes: int) -> list[int]:
    """Positions of batches, about ``piece_bytes`` apart, that an offset index names; the first is 0."""
    borders = [0]
    for _, position_bytes in _ENTRY.iter_unpack(index[: len(index) - len(index) % _ENTRY.size]):
        if borders[-1] + piece_bytes <= position_bytes < end_bytes:
            borders.append(position_bytes)
    return borders


def write_in_turns(
    borders: Sequence[int],
    make_text: Callable[[int, int], tuple[LogText, Callable[[], OffsetGaps | None]]],
    write: Callable[[bytes], object],
) -> tuple[list[Piece], CorruptError | None]:
    """Write the text of a log up to the last border, with a forked process.

    Args:
        borders: Where the pieces begin, and where the last one ends.
        make_text: Makes the text between two positions, and a function that gives its gaps afterwards.
        write: Writes to where the forked process writes, too; not buffered.

    Returns:
        The pieces in order, and why the last one ends early.

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
    if not child:
        _run_child(_Worker(borders, make_text, write, mine, others), number, results_out)
    done = Turns()
    try:
        done = _Worker(borders, make_text, write, mine, others).work(number)
    finally:
        # Without its turn, the other process ends.
        os.close(mine)
        os.close(others)
        with open(results_in, "rb") as results:
            data = results.read()
        os.waitpid(child, 0)
    if not data:
        raise ChildProcessError("The process that makes half of the text was ended from outside. Try again.")
    others_done = pickle.loads(data)  # noqa: S301  (from a fork of this process)
    if isinstance(others_done, BaseException):
        raise others_done
    return sorted([*done.pieces, *others_done.pieces]), done.failure or others_done.failure


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
        borders: Sequence[int],
        make_text: Callable[[int, int], tuple[LogText, Callable[[], OffsetGaps | None]]],
        write: Callable[[bytes], object],
        mine: int,
        others: int,
    ) -> None:
        self._borders = borders
        self._make_text = make_text
        self._write = write
        self._mine = mine
        self._others = others

    def work(self, first: int) -> Turns:
        """Write every other piece, each in its turn."""
        turns = Turns()
        for number in range(first, len(self._borders) - 1, _PROCESSES):
            start_bytes, end_bytes = self._borders[number : number + 2]
            text, gaps = self._make_text(start_bytes, end_bytes)
            failure = None
            try:
                if not self._write_piece(text, has_turn=number == 0):
                    break
            except CorruptError as error:
                failure = error
            turns.pieces.append(Piece(number, text.valid_bytes, text.has_damage, gaps()))
            turns.failure = failure
            goes_on = failure is None and text.valid_bytes == end_bytes
            self._pass_on(_GO_ON if goes_on else _STOP)
            if not goes_on:
                break
        return turns

    def _write_piece(self, text: LogText, *, has_turn: bool) -> bool:
        """Make the text of a piece, and write it when it is its turn.

        Returns:
            Whether its turn came: no piece before it has failed.

        Raises:
            CorruptError: The text ends with a failure; all before it is written.
        """
        made: list[bytes] = []
        held_bytes = 0
        failure = None
        try:
            for part in text.pieces():
                made.append(part)
                held_bytes += len(part)
                if held_bytes < _MOST_HELD_BYTES:
                    continue
                if not has_turn and not self._wait():
                    return False
                has_turn = True
                self._write(b"".join(made))
                made, held_bytes = [], 0
        except CorruptError as error:
            failure = error
        if not has_turn and not self._wait():
            return False
        self._write(b"".join(made))
        if failure is not None:
            raise failure
        return True

    def _wait(self) -> bool:
        return os.read(self._mine, 1) == _GO_ON

    def _pass_on(self, word: bytes) -> None:
        try:
            os.write(self._others, word)
        except BrokenPipeError:
            # The other process has written its last piece.
            return
