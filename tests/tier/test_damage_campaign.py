"""Random damage to the objects of a tier: an error, or the rows that are left, but never others."""

from __future__ import annotations

import random
import shutil

import pytest

import storage_core
from storage_core.errors import SegmentLogError, warn_once
from tests.tier.conftest import read
from tests.tier.uploads import KINDS, put_aiven, put_local, uploads_of

MODES = ("local", *KINDS)


@pytest.fixture(scope="module")
def tiers(tmp_path_factory, source, public_key):
    root = tmp_path_factory.mktemp("tiers")
    for mode in MODES:
        for each in uploads_of(source / "orders-0", 10**6):
            if mode == "local":
                put_local(root / mode, each)
            else:
                put_aiven(root / mode, each, mode, public_key=public_key, chunk_bytes=2000)
    return root


def damage(root, chance, spared):
    paths = sorted(path for path in root.rglob("*") if path.is_file() and path.suffix not in spared)
    path = chance.choice(paths)
    data = bytearray(path.read_bytes())
    what = chance.choice(["flip", "flip", "digit", "cut", "grow", "lose", "swap", "zeros"])
    place = chance.randrange(len(data)) if data else 0
    if what == "flip" and data:
        data[place] ^= 1 << chance.randrange(8)
    elif what == "digit" and data:
        # Of a manifest this is often still JSON.
        digits = [at for at, byte in enumerate(data) if 48 <= byte <= 57] or [place]
        data[chance.choice(digits)] = 48 + chance.randrange(10)
    elif what == "cut":
        del data[place:]
    elif what == "grow":
        data += chance.randbytes(chance.randrange(1, 100))
    elif what == "zeros":
        data[place : place + 50] = bytes(len(data[place : place + 50]))
    elif what == "swap":
        other = chance.choice(paths)
        other_data = other.read_bytes()
        other.write_bytes(data)
        data = other_data
    path.write_bytes(data)
    if what == "lose":
        path.unlink()
    return f"{what} {path.name} at {place}"


def outcome(root, key_file, expected, caplog, **options):
    """Return what a read made of damage: an error, the same rows, or only some of them with a warning."""
    caplog.clear()
    warn_once.cache_clear()
    try:
        rows = read(root, key_file, **options).to_pylist()
    except SegmentLogError:
        return "error"
    if rows == expected:
        return "same"
    assert all(row in expected for row in rows), "other rows"
    assert [row["offset"] for row in rows] == sorted({row["offset"] for row in rows})
    assert caplog.records, "rows were lost without a word"
    return "fewer"


@pytest.mark.thorough
@pytest.mark.parametrize("isolation_level", ["read_uncommitted", "read_committed"])
def test_damage_gives_no_other_rows(tmp_path, tiers, source, key_file, caplog, isolation_level):
    expected = storage_core.read_table(str(source), isolation_level=isolation_level).to_pylist()
    outcomes = {}
    for seed in range(200):
        chance = random.Random(seed)
        mode = chance.choice(MODES)
        root = tmp_path / f"{seed}"
        shutil.copytree(tiers / mode, root)
        # As in a log directory that a broker has closed, nothing tells of a change of an index without a checksum.
        is_trusted = isolation_level == "read_committed" and "aes" not in mode
        what = damage(root, chance, {".indexes", ".txnindex"} if is_trusted else set())
        try:
            found = outcome(root, key_file, expected, caplog, isolation_level=isolation_level)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {mode}, {what}") from error
        outcomes[found] = outcomes.get(found, 0) + 1
        shutil.rmtree(root)
    assert set(outcomes) == {"error", "fewer", "same"}
