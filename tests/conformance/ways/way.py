"""What a column of the matrix is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

    from conformance.rules import CaseRules


def _always(rules: CaseRules) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Way:
    """One way of reading, tried on every case that it applies to.

    Attributes:
        column: The matrix's column; several ways may share one.
        name: What tells it from the column's other ways.
        run: Called with the `CaseUnderTest`, and with a `ClassicSpark` or a `ConnectSpark` if ``session`` is set.
        applies: Whether the way means anything for a case.
        session: The kind of Spark session that ``run`` needs.
        is_quick: Whether `make test` tries it, on a sample of the cases.
        server: The fixture of the object store that has the case; None: the case lies on the disk.
    """

    column: str
    name: str
    run: Callable[..., None]
    applies: Callable[[CaseRules], bool] = _always
    session: Literal["classic", "connect"] | None = None
    is_quick: bool = True
    server: str | None = None
