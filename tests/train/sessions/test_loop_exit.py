"""Loops that a script leaves in every way, and what is known of it at that moment."""

import contextlib
import subprocess
import sys

import pytest

from cloudspot.train.sessions.loop_exit import LoopExit

left, caught = [], []


def counted():
    with LoopExit(lambda: left.append(1)):
        number = 0
        while True:
            yield number
            number += 1


def passed_on(numbers):
    yield from (each for each in numbers)


class Bar:
    """As a progress bar: it keeps what it iterates."""

    def __init__(self, numbers):
        self.numbers = numbers

    def __iter__(self):
        numbers = self.numbers
        try:
            for each in numbers:  # noqa: UP028 - as tqdm does
                yield each
        finally:
            self.over = True


def fail():
    raise ValueError("no such layer")


def breaks():
    for each in counted():
        if each == 3:
            break


def breaks_within_a_context():
    with contextlib.nullcontext():
        for each in counted():
            try:
                if each == 3:
                    break
            finally:
                pass


def breaks_in_an_except_clause():
    for _ in counted():
        try:
            fail()
        except ValueError:
            break


def returns():
    for each in counted():
        if each == 3:
            return


def enumerates():
    for _, each in enumerate(counted()):
        if each == 3:
            break


def zips_with_something_shorter():
    for _ in zip(counted(), "abc", strict=False):
        pass


def passes_on():
    for each in passed_on(counted()):
        if each == 3:
            break


def shows_a_bar():
    for each in Bar(counted()):
        if each == 3:
            break


def drops_the_iterator():
    numbers = counted()
    next(numbers)
    del numbers


def closes_the_iterator():
    numbers = counted()
    next(numbers)
    numbers.close()


def raises():
    for _ in counted():
        raise ValueError("no such layer")


def raises_in_a_call():
    for _ in counted():
        fail()


def raises_in_a_comprehension():
    [fail() for _ in counted()]


def raises_with_the_iterator_in_a_variable():
    numbers = counted()
    for _ in numbers:
        fail()


def raises_through_a_generator():
    for _ in passed_on(counted()):
        fail()


def exits():
    for _ in counted():
        sys.exit(0)


def raises_again():
    for _ in counted():
        try:
            fail()
        except ValueError:
            caught.append(1)
            raise


def raises_again_what_it_has_caught():
    for _ in counted():
        try:
            fail()
        except ValueError as error:
            again = error
            raise again  # noqa: B904 - the same


def raises_another_error():
    for _ in counted():
        try:
            fail()
        except ValueError as error:
            raise ValueError("another") from error


def raises_again_within_contexts():
    with contextlib.nullcontext():
        for _ in counted():
            try:
                with contextlib.nullcontext():
                    fail()
            except ValueError:
                caught.append(1)
                raise
            finally:
                pass


def raises_again_through_a_generator():
    for _ in passed_on(counted()):
        try:
            fail()
        except ValueError:
            caught.append(1)
            raise


def raises_again_and_catches_outside_of_the_loop():
    try:
        for _ in counted():
            try:
                fail()
            except ValueError:
                caught.append(1)
                raise
    except ValueError:
        pass


def catches_outside_of_the_loop():
    try:
        for _ in counted():
            fail()
    except ValueError:
        pass


@pytest.mark.parametrize(
    "loop",
    [
        breaks, breaks_within_a_context, breaks_in_an_except_clause, returns, enumerates,
        zips_with_something_shorter, passes_on, shows_a_bar, drops_the_iterator, closes_the_iterator,
    ],
)  # fmt: skip
def test_a_loop_that_the_script_leaves_is_left(loop):
    left.clear()
    loop()
    assert left == [1]


@pytest.mark.parametrize(
    "loop",
    [
        raises, raises_in_a_call, raises_in_a_comprehension, raises_with_the_iterator_in_a_variable,
        raises_through_a_generator, exits, catches_outside_of_the_loop, raises_again,
        raises_again_what_it_has_caught, raises_another_error, raises_again_within_contexts,
        raises_again_through_a_generator, raises_again_and_catches_outside_of_the_loop,
    ],
)  # fmt: skip
def test_a_loop_that_an_exception_ends_is_not(loop):
    left.clear()
    with contextlib.suppress(ValueError, SystemExit):
        loop()
    assert left == []


@pytest.mark.full
def test_an_exception_elsewhere_in_the_same_function_changes_nothing():
    left.clear()
    kept = []
    for _ in range(3):
        for _ in counted():
            try:
                fail()
            except ValueError as error:
                kept.append(error)
            break
    assert left == [1, 1, 1]


def test_a_loop_that_the_end_of_the_interpreter_frees_was_not_left():
    """Nothing calls the generator then; it ended in an IndexError."""
    code = (
        "from cloudspot.train.sessions.loop_exit import LoopExit\n"
        "def loop():\n"
        "    with LoopExit(lambda: print('left')):\n"
        "        yield 1\n"
        "class Holder: pass\n"
        "holder = Holder(); holder.me = holder; holder.loop = loop(); next(holder.loop)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
