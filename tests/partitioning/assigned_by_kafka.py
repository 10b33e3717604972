"""What Kafka 4.1.0 assigned: results of its ``RangeAssignor`` and ``RoundRobinAssignor``, called in Java.

A partition is written ``topic:number``. Kafka leaves the order of topics in a member's list open; here they are sorted.
"""

from __future__ import annotations

from typing import NamedTuple


class Member(NamedTuple):
    topics: str
    instance: str | None = None
    rack: str | None = None


class Case(NamedTuple):
    name: str
    partitions_per_topic: dict[str, int]
    members: dict[str, Member]
    racks: dict[str, list[str]]  # per partition its racks, a letter each
    by_range: dict[str, str]
    by_round_robin: dict[str, str]


ASSIGNED_BY_KAFKA = [
    Case(
        "one member, one topic", {"t": 3}, {"a": Member("t")}, {}, {"a": "t:0 t:1 t:2"}, {"a": "t:0 t:1 t:2"}
    ),
    Case("no partitions", {"t": 0}, {"a": Member("t")}, {}, {"a": ""}, {"a": ""}),
    Case("a topic that is not there", {"t": 2}, {"a": Member("t u")}, {}, {"a": "t:0 t:1"}, {"a": "t:0 t:1"}),
    Case(
        "a topic without subscribers",
        {"t": 2, "u": 2},
        {"a": Member("u")},
        {},
        {"a": "u:0 u:1"},
        {"a": "u:0 u:1"},
    ),
    Case("no topics", {"t": 2}, {"a": Member("")}, {}, {"a": ""}, {"a": ""}),
    Case(
        "two members, one partition",
        {"t": 1},
        {"a": Member("t"), "b": Member("t")},
        {},
        {"a": "t:0", "b": ""},
        {"a": "t:0", "b": ""},
    ),
    Case(
        "two members, two partitions",
        {"t": 2},
        {"a": Member("t"), "b": Member("t")},
        {},
        {"a": "t:0", "b": "t:1"},
        {"a": "t:0", "b": "t:1"},
    ),
    Case(
        "two members, two topics of three partitions",
        {"t": 3, "u": 3},
        {"b": Member("t u"), "a": Member("u t")},
        {},
        {"a": "t:0 t:1 u:0 u:1", "b": "t:2 u:2"},
        {"a": "t:0 t:2 u:1", "b": "t:1 u:0 u:2"},
    ),
    Case(
        "seven partitions, three members",
        {"t": 7},
        {"b": Member("t"), "c": Member("t"), "a": Member("t")},
        {},
        {"a": "t:0 t:1 t:2", "b": "t:3 t:4", "c": "t:5 t:6"},
        {"a": "t:0 t:3 t:6", "b": "t:1 t:4", "c": "t:2 t:5"},
    ),
    Case(
        "more members than partitions",
        {"t": 2, "u": 1},
        {"a": Member("t u"), "b": Member("t u"), "c": Member("t u"), "d": Member("t u")},
        {},
        {"a": "t:0 u:0", "b": "t:1", "c": "", "d": ""},
        {"a": "t:0", "b": "t:1", "c": "u:0", "d": ""},
    ),
    Case(
        "different subscriptions",
        {"t": 3, "u": 2},
        {"a": Member("t"), "b": Member("t u"), "c": Member("t")},
        {},
        {"a": "t:0", "b": "t:1 u:0 u:1", "c": "t:2"},
        {"a": "t:0", "b": "t:1 u:0 u:1", "c": "t:2"},
    ),
    Case(
        "each another subset of three topics",
        {"t": 1, "u": 2, "v": 3},
        {"a": Member("t"), "b": Member("t u"), "c": Member("t u v")},
        {},
        {"a": "t:0", "b": "u:0", "c": "u:1 v:0 v:1 v:2"},
        {"a": "t:0", "b": "u:0", "c": "u:1 v:0 v:1 v:2"},
    ),
    Case(
        "static members first",
        {"t": 3, "u": 3},
        {"a": Member("t u"), "b": Member("t u", "y"), "c": Member("t u", "x")},
        {},
        {"a": "t:2 u:2", "b": "t:1 u:1", "c": "t:0 u:0"},
        {"a": "t:2 u:2", "b": "t:1 u:1", "c": "t:0 u:0"},
    ),
    Case(
        "static members of one topic",
        {"t": 4, "u": 3},
        {"a": Member("t u"), "b": Member("u", "y"), "c": Member("t", "x"), "d": Member("t u", "w")},
        {},
        {"a": "t:3 u:2", "b": "u:1", "c": "t:2", "d": "t:0 t:1 u:0"},
        {"a": "t:2 u:1", "b": "u:0", "c": "t:1", "d": "t:0 t:3 u:2"},
    ),
    Case(
        "names with dashes and numbers",
        {"t-1": 2, "t": 2, "t-10": 2, "T": 1},
        {"m-10": Member("t t-1 t-10 T"), "m-2": Member("t t-1 t-10 T"), "M": Member("t t-1 t-10 T")},
        {},
        {"M": "T:0 t:0 t-1:0 t-10:0", "m-10": "t:1 t-1:1 t-10:1", "m-2": ""},
        {"M": "T:0 t-1:0 t-10:1", "m-10": "t:0 t-1:1", "m-2": "t:1 t-10:0"},
    ),
    Case(
        "names beyond the first 65,536 characters",
        {"t": 3},
        {"\U0001f600": Member("t"), "\uff5e": Member("t"), "\xfc": Member("t")},
        {},
        {"\xfc": "t:0", "\uff5e": "t:2", "\U0001f600": "t:1"},
        {"\xfc": "t:0", "\uff5e": "t:2", "\U0001f600": "t:1"},
    ),
    Case(
        "racks: each partition in all racks",
        {"t": 3},
        {"a": Member("t", None, "z"), "b": Member("t", None, "y"), "c": Member("t", None, "x")},
        {"t": ["xyz", "xyz", "xyz"]},
        {"a": "t:0", "b": "t:1", "c": "t:2"},
        {"a": "t:0", "b": "t:1", "c": "t:2"},
    ),
    Case(
        "racks: each partition in one rack",
        {"t": 3},
        {"a": Member("t", None, "z"), "b": Member("t", None, "y"), "c": Member("t", None, "x")},
        {"t": ["x", "y", "z"]},
        {"a": "t:2", "b": "t:1", "c": "t:0"},
        {"a": "t:0", "b": "t:1", "c": "t:2"},
    ),
    Case(
        "racks: members elsewhere",
        {"t": 3},
        {"a": Member("t", None, "q"), "b": Member("t", None, "q")},
        {"t": ["x", "y", "z"]},
        {"a": "t:0 t:1", "b": "t:2"},
        {"a": "t:0 t:2", "b": "t:1"},
    ),
    Case(
        "racks: no member has one",
        {"t": 3, "u": 3},
        {"a": Member("t u"), "b": Member("t u")},
        {"t": ["x", "y", "z"], "u": ["z", "y", "x"]},
        {"a": "t:0 t:1 u:0 u:1", "b": "t:2 u:2"},
        {"a": "t:0 t:2 u:1", "b": "t:1 u:0 u:2"},
    ),
    Case(
        "racks: one member has none",
        {"t": 4},
        {"a": Member("t"), "b": Member("t", None, "x")},
        {"t": ["x", "x", "y", "y"]},
        {"a": "t:0 t:1", "b": "t:2 t:3"},
        {"a": "t:0 t:2", "b": "t:1 t:3"},
    ),
    Case(
        "racks: an empty name is none",
        {"t": 4},
        {"a": Member("t", None, ""), "b": Member("t", None, "x")},
        {"t": ["x", "x", "y", "y"]},
        {"a": "t:0 t:1", "b": "t:2 t:3"},
        {"a": "t:0 t:2", "b": "t:1 t:3"},
    ),
    Case(
        "racks: shares limit what is near",
        {"t": 6},
        {"a": Member("t", None, "x"), "b": Member("t", None, "y"), "c": Member("t", None, "z")},
        {"t": ["x", "x", "x", "x", "y", "z"]},
        {"a": "t:0 t:1", "b": "t:2 t:4", "c": "t:3 t:5"},
        {"a": "t:0 t:3", "b": "t:1 t:4", "c": "t:2 t:5"},
    ),
    Case(
        "racks: topics with as many partitions stay together",
        {"t": 4, "u": 4},
        {"a": Member("t u", None, "x"), "b": Member("t u", None, "y")},
        {"t": ["y", "xy", "xy", "x"], "u": ["y", "x", "xy", "x"]},
        {"a": "t:1 t:2 u:1 u:2", "b": "t:0 t:3 u:0 u:3"},
        {"a": "t:0 t:2 u:0 u:2", "b": "t:1 t:3 u:1 u:3"},
    ),
    Case(
        "racks: topics with other numbers of partitions",
        {"t": 4, "u": 3},
        {"a": Member("t u", None, "x"), "b": Member("t u", None, "y")},
        {"t": ["y", "y", "x", "x"], "u": ["y", "x", "x"]},
        {"a": "t:2 t:3 u:1 u:2", "b": "t:0 t:1 u:0"},
        {"a": "t:0 t:2 u:0 u:2", "b": "t:1 t:3 u:1"},
    ),
    Case(
        "racks: different subscriptions",
        {"t": 6, "u": 7, "v": 2},
        {"a": Member("t u v", None, "x"), "b": Member("t u", None, "y"), "c": Member("u v", None, "z")},
        {
            "t": ["xy", "yz", "zx", "xy", "yz", "zx"],
            "u": ["x", "y", "z", "x", "y", "z", "x"],
            "v": ["yz", "xy"],
        },
        {"a": "t:0 t:2 t:3 u:0 u:3 u:6 v:1", "b": "t:1 t:4 t:5 u:1 u:4", "c": "u:2 u:5 v:0"},
        {"a": "t:0 t:2 t:4 u:1 u:4 v:0", "b": "t:1 t:3 t:5 u:2 u:5", "c": "u:0 u:3 u:6 v:1"},
    ),
    Case(
        "racks: static members first",
        {"t": 5},
        {"a": Member("t", None, "x"), "b": Member("t", "i", "y"), "c": Member("t", "h", "x")},
        {"t": ["xy", "y", "x", "x", "y"]},
        {"a": "t:3", "b": "t:1 t:4", "c": "t:0 t:2"},
        {"a": "t:2", "b": "t:1 t:4", "c": "t:0 t:3"},
    ),
    Case(
        "racks: they matter for one topic only",
        {"t": 4, "u": 2},
        {"a": Member("t u", None, "x"), "b": Member("t u")},
        {"t": ["y", "x", "y", "x"], "u": ["z", "z"]},
        {"a": "t:1 t:3 u:0", "b": "t:0 t:2 u:1"},
        {"a": "t:0 t:2 u:0", "b": "t:1 t:3 u:1"},
    ),
    Case(
        "racks: one topic has none",
        {"t": 4, "u": 4, "v": 2},
        {"a": Member("t u v", None, "x"), "b": Member("t u v", None, "y")},
        {"t": ["y", "x", "y", "x"]},
        {"a": "t:0 t:1 u:0 u:1 v:0", "b": "t:2 t:3 u:2 u:3 v:1"},
        {"a": "t:0 t:2 u:0 u:2 v:0", "b": "t:1 t:3 u:1 u:3 v:1"},
    ),
]
