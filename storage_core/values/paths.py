"""Paths of the wanted fields within a column, one level at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from storage_core.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Collection

    from storage_core.values.decoding import Paths


def paths_of_fields(paths: Paths, names: Collection[str], where: str) -> dict[str, Paths]:
    """Choose the wanted fields of a struct, in the order of the struct, with the paths below each.

    Args:
        paths: Paths within the struct, cut at each dot, also at those within names; None for all.
        names: All fields.
        where: What an error calls the struct.

    Raises:
        OptionError: A path names a field that the struct does not have.
    """
    if paths is None or () in paths:
        return dict.fromkeys(names)
    below: dict[str, list[tuple[str, ...]]] = {}
    for path in paths:
        ends = [end for end in range(len(path), 0, -1) if ".".join(path[:end]) in names]
        end = ends[0] if ends else 1
        below.setdefault(".".join(path[:end]), []).append(path[end:])
    for name in below:
        if name not in names:
            raise OptionError(f"{where} has no field '{name}': it has {', '.join(names) or 'none'}.")
    return {name: None if () in below[name] else tuple(below[name]) for name in names if name in below}
