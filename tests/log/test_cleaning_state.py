"""Who cleans a log, and who waits for that."""

from __future__ import annotations

import threading

import pytest

from storage_core.log.log_state import CleaningState


def test_one_cleans_and_the_next_may_when_it_is_done():
    state = CleaningState()
    for _ in range(2):
        with state.under_way(wait=False) as is_mine:
            assert is_mine
            with state.under_way(wait=False) as is_mine_too:
                assert not is_mine_too


def test_a_thread_that_does_not_clean_ends_no_cleaning():
    state = CleaningState()
    with state.under_way(wait=False):
        with state.under_way(wait=False):
            pass
        with state.under_way(wait=False) as is_mine:
            assert not is_mine


def test_an_error_ends_it():
    state = CleaningState()
    with pytest.raises(OSError, match="as it may be"), state.under_way(wait=False):
        raise OSError("as it may be")
    with state.under_way(wait=False) as is_mine:
        assert is_mine


def test_who_waits_has_its_turn():
    state, turns = CleaningState(), []

    def clean():
        with state.under_way(wait=True) as is_mine:
            turns.append(is_mine)

    with state.under_way(wait=False):
        thread = threading.Thread(target=clean)
        thread.start()
        assert turns == []
    thread.join(300)
    assert turns == [True]


def test_stopping_waits_for_the_end_of_what_is_under_way():
    state, order = CleaningState(), []

    def stop():
        state.stop()
        order.append("stopped")

    with state.under_way(wait=False):
        thread = threading.Thread(target=stop)
        thread.start()
        while not state.is_stopped:
            assert thread.is_alive()
        order.append("cleaned")
    thread.join(300)
    assert order == ["cleaned", "stopped"]


def test_a_stopped_log_is_not_cleaned():
    state = CleaningState()
    state.stop()
    for wait in (True, False):
        with state.under_way(wait=wait) as is_mine:
            assert not is_mine
