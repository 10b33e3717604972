"""Reading and writing held down to a rate, with a clock and a sleep of its own."""

from __future__ import annotations

import pytest

from storage_core.log.log_cleaner import Throttle


class Time:
    def __init__(self):
        self.now = 100.0
        self.slept = []

    def seconds(self):
        return self.now

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def time():
    return Time()


def throttle(time, rate):
    return Throttle(rate, seconds=time.seconds, sleep=time.sleep)


def test_without_a_rate_there_is_no_wait(time):
    unlimited = throttle(time, None)
    time.now += 10
    unlimited(1 << 40)
    assert time.slept == []


def test_what_was_too_much_is_waited_for(time):
    limited = throttle(time, 1000)
    time.now += 0.5
    limited(2000)
    # 2000 bytes take 2 seconds, of which half a second is over.
    assert sum(time.slept) == pytest.approx(1.5)


def test_who_waits_for_long_gives_up_when_told_to(time):
    limited = throttle(time, 1)
    time.now += 1
    limited(1_000_000, lambda: time.now > 110)
    assert 110 < time.now < 111


def test_what_is_slow_enough_goes_on(time):
    limited = throttle(time, 1000)
    time.now += 2
    limited(2000)
    assert time.slept == []


def test_the_rate_is_looked_at_no_more_often_than_every_300_ms(time):
    limited = throttle(time, 1000)
    for _ in range(3):
        time.now += 0.1
        limited(1000)
    assert time.slept == []
    time.now += 0.1
    limited(1000)
    assert sum(time.slept) == pytest.approx(3.6)


def test_a_period_begins_anew_after_each_look(time):
    limited = throttle(time, 1000)
    time.now += 10
    limited(1)
    time.now += 1
    # The idle time before does not count.
    limited(3000)
    assert sum(time.slept) == pytest.approx(2)


def test_over_a_long_time_the_rate_is_kept(time):
    limited = throttle(time, 1_000_000)
    start = time.now
    for _ in range(10_000):
        time.now += 0.001
        limited(10_000)
    assert 10_000 * 10_000 / (time.now - start) == pytest.approx(1_000_000, rel=0.05)
