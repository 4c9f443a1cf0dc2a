import pytest

from cloudspot.plugin.answercache import AnswerCache


class Asked:
    def __init__(self):
        self.now = 0.0
        self.count = 0
        self.cache = AnswerCache(monotonic=lambda: self.now)

    def ask(self):
        self.count += 1
        return self.count


@pytest.fixture
def asked():
    return Asked()


def test_an_answer_is_kept_for_its_time_and_no_longer(asked):
    assert [asked.cache.get("a", asked.ask, seconds=10.0) for _ in range(2)] == [1, 1]
    asked.now = 9.9
    assert asked.cache.get("a", asked.ask, seconds=10.0) == 1
    asked.now = 10.0
    assert asked.cache.get("a", asked.ask, seconds=10.0) == 2


def test_each_key_has_an_answer_of_its_own(asked):
    assert asked.cache.get(("a", 1), asked.ask, seconds=10.0) == 1
    assert asked.cache.get(("a", 2), asked.ask, seconds=10.0) == 2


def test_a_failure_is_not_kept(asked):
    with pytest.raises(ZeroDivisionError):
        asked.cache.get("a", lambda: 1 / 0, seconds=10.0)
    assert asked.cache.get("a", asked.ask, seconds=10.0) == 1


def test_an_answer_may_be_kept_for_a_shorter_time_than_was_meant_and_never_for_a_longer(asked):
    asked.cache.get("a", asked.ask, seconds=10.0)
    asked.cache.shorten("a", seconds=3.0)
    asked.cache.shorten("a", seconds=30.0)
    asked.cache.shorten("b", seconds=3.0)
    asked.now = 3.0
    assert asked.cache.get("a", asked.ask, seconds=10.0) == 2
