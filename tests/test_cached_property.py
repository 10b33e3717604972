from __future__ import annotations

import threading

from storage_core.cached_property import cached_property


class Answers:
    """Its answers."""

    def __init__(self, find_out):
        self._find_out = find_out

    @cached_property
    def answer(self):
        """The answer."""
        return self._find_out()


def test_a_value_is_found_out_once():
    found = []
    answers = Answers(lambda: found.append(None) or len(found))
    assert (answers.answer, answers.answer) == (1, 1)
    assert Answers(lambda: 7).answer == 7


def test_a_value_may_be_given():
    answers = Answers(lambda: 1)
    answers.answer = 2
    assert answers.answer == 2
    del answers.answer
    assert answers.answer == 1


def test_of_the_class_it_is_the_property():
    assert Answers.answer.__doc__ == "The answer."


def test_objects_do_not_wait_for_each_other():
    is_asked, may_answer = threading.Event(), threading.Event()
    slow = Answers(lambda: is_asked.set() or may_answer.wait())
    thread = threading.Thread(target=lambda: slow.answer)
    thread.start()
    is_asked.wait()
    others = []
    other = threading.Thread(target=lambda: others.append(Answers(lambda: "at once").answer))
    other.start()
    other.join(300)
    may_answer.set()
    thread.join()
    assert others == ["at once"]
