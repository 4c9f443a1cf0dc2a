"""What every cloud's account setup promises, as tests: it is cut off anywhere, repeated, adopted, refused, undone.

A cloud's own tests inherit :class:`SetupTests` and bring the fixture ``account``.
"""

from __future__ import annotations

import http.client
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest
from support.worlds.listed_host import ListedHost

from cloudspot.calls import SetupRequest
from cloudspot.cli.account import parts as parts_module
from cloudspot.cli.account.parts import Plan, look_at, make, recorded_parts, remove
from cloudspot.cli.account.record import SetupRecord
from cloudspot.emulation.cloud import EmulatedCloud
from cloudspot.interfaces import AccountSetup, SetupPart
from cloudspot.jobstore.jobs.state_home import HOME


class Killed(BaseException):
    """The process ended here: nothing catches it."""


@contextmanager
def killed_at(number: int, when: str) -> Iterator[list[int]]:
    """End at the given HTTP request, counted from 1: ``before`` it leaves, or ``after`` its answer came.

    Yields the number of requests so far.
    """
    count = [0]
    put_request, begin = http.client.HTTPConnection.putrequest, http.client.HTTPResponse.begin

    def counted(self: Any, *args: Any, **options: Any) -> None:
        count[0] += 1
        if count[0] == number and when == "before":
            raise Killed
        put_request(self, *args, **options)

    def answered(self: Any) -> None:
        begin(self)
        if count[0] == number and when == "after":
            raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(http.client.HTTPConnection, "putrequest", counted)
        patch.setattr(http.client.HTTPResponse, "begin", answered)
        yield count


@contextmanager
def bare(cloud: EmulatedCloud, directory: Path) -> Iterator[None]:
    """Run an emulated cloud whose account has only an administrator, as whom the process then acts."""
    cloud.is_bare = True
    with pytest.MonkeyPatch.context() as patch:
        cloud.start(ListedHost(), address="127.0.0.1", directory=directory)
        for name, value in cloud.environment().items():
            patch.setenv(name, value)
        try:
            yield
        finally:
            cloud.stop()


class SetUpAccount(ABC):
    """An emulated account, and what its administrator sees in it."""

    provider: ClassVar[str]

    @abstractmethod
    def setup(self) -> AccountSetup:
        """Return the setup, as a new process opens it."""

    @abstractmethod
    def contents(self) -> Mapping[str, Any]:
        """Return all that a setup could make, as the cloud tells it, without ids and times."""

    @abstractmethod
    def empty(self) -> None:
        """Begin with another account that has only an administrator, and those whom ``request`` names."""

    request: SetupRequest
    """A request that makes every part."""

    def record(self) -> SetupRecord:
        return SetupRecord(self.provider, self.setup().account())

    def make(self, found: list[parts_module.Found] | None = None) -> list[SetupPart]:
        """Make everything, as a command does; return what was missing. ``found`` was looked at before."""
        return list(make(self.look() if found is None else found, self.request, self.record()))

    def begin_anew(self) -> None:
        """Empty the account, and forget what was made."""
        self.record().path.unlink(missing_ok=True)
        self.empty()

    def look(self) -> list[parts_module.Found]:
        return look_at(self.setup().parts(self.request), self.record())

    def begin(self, state: Path, patch: pytest.MonkeyPatch) -> None:
        """Begin a test with an account that nothing was made in, and records in a directory of its own."""
        patch.setenv(HOME, str(state))
        self.empty()
        self.setup()

    def refusals(self) -> dict[str, tuple[str, ...]]:
        """Return why each part is refused, by its kind."""
        return {one.part.kind: one.state.excess for one in self.look() if one.state.excess}

    def plans(self) -> dict[str, str]:
        """Return what becomes of each part, by kind and name."""
        return {f"{one.part.kind} {one.part.name}": one.plan.value for one in self.look()}

    def remove(self) -> list[SetupPart]:
        """Remove everything, as a command does; return what was there."""
        setup = self.setup()
        store = setup.settings(self.request).store_url
        return [part for part, _ in remove(recorded_parts(setup, self.record()), store, self.record())]


class SetupTests:
    """For each cloud."""

    removal_stride = 7
    """A removal is killed at every request of that number, counted from the first."""

    def test_a_setup_makes_all_parts_which_a_second_one_keeps(self, account: SetUpAccount):
        before = account.contents()
        made = account.make()
        assert made
        whole = account.contents()
        assert whole != before
        assert {*account.plans().values()} <= {"keep", "adopt"}
        assert account.make() == []
        assert account.contents() == whole

    def test_looking_changes_nothing(self, account: SetUpAccount):
        before = account.contents()
        assert {one.plan for one in account.look()} <= {Plan.MAKE, Plan.ADOPT}
        assert account.contents() == before
        assert not account.record().path.exists()

    def test_removing_leaves_the_account_as_it_was(self, account: SetUpAccount):
        before = account.contents()
        account.make()
        account.remove()
        assert account.contents() == before
        assert not account.record().path.exists()
        assert account.remove() == []

    def test_every_part_says_why_it_is_needed_what_it_costs_and_how_to_make_it(self, account: SetUpAccount):
        for one in account.setup().parts(account.request):
            assert one.purpose, one.name
            assert one.cost, one.name
            assert one.commands, one.name

    @pytest.mark.parametrize(
        ("when", "stride"),
        [
            ("before", 11),
            ("after", 11),
            pytest.param("before", 1, marks=pytest.mark.soak),
            pytest.param("after", 1, marks=pytest.mark.soak),
        ],
    )
    def test_a_setup_that_is_killed_at_any_request_is_completed(self, account: SetUpAccount, when, stride):
        account.make()
        whole = account.contents()
        number = 1 - stride
        while True:
            number += stride
            account.begin_anew()
            found = account.look()
            with killed_at(number, when) as count:
                try:
                    account.make(found)
                except Killed:
                    pass
                else:
                    break
            account.make()
            assert account.contents() == whole, number
        assert number > count[0] > 10

    @pytest.mark.parametrize("when", ["before", "after"])
    def test_a_removal_that_is_killed_on_its_way_is_completed(self, account: SetUpAccount, when):
        before = account.contents()
        number = 1 - self.removal_stride
        while True:
            number += self.removal_stride
            account.make()
            with killed_at(number, when):
                try:
                    account.remove()
                except Killed:
                    pass
                else:
                    break
            account.remove()
            assert account.contents() == before, number
        assert number > 10

    def test_what_another_has_made_is_used_if_it_is_no_wider_and_never_removed(self, account: SetUpAccount):
        account.make()
        whole = account.contents()
        account.record().path.unlink()  # as if somebody else had made them
        assert {*account.plans().values()} == {"adopt"}
        assert account.make() == []
        assert account.remove() == []
        assert account.contents() == whole
