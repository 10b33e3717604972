"""Streams over volumes that vanish and return: random lives, judged by a model of what must be there."""

from __future__ import annotations

import pytest

from tests.scan.stream_lives import live


def test_a_few_lives(tmp_path, monkeypatch):
    assert live(tmp_path, range(8), monkeypatch)["lives"] == 8


@pytest.mark.thorough
def test_a_hundred_lives(tmp_path, monkeypatch):
    counts = live(tmp_path, range(100, 200), monkeypatch)
    assert counts["volumes away"] > 100
    assert counts["older copies"] > 10
    assert counts["errors while something was away, DataLossError"] > 50


@pytest.mark.soak
@pytest.mark.parametrize("first", range(1_000, 4_000, 500))
def test_three_thousand_lives(tmp_path, monkeypatch, first):
    print(dict(live(tmp_path, range(first, first + 500), monkeypatch)))
