"""An emulated account: its servers, its audit trail, and its scheduled actions."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from cloudspot.emulation.api_faults import Call, Faults
from cloudspot.emulation.audit_trail import Trail
from cloudspot.emulation.cloud import Contrary, EmulatedCloud, MachineHost
from cloudspot.emulation.function_front import FunctionFront
from cloudspot.emulation.spot_plan import SpotPlan
from cloudspot.emulation.wsgi_server import Server

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

TICK_SECONDS = 1.0


def common_contraries(provider: str) -> dict[str, Contrary]:
    """Return the unexpected behaviour that every account can show; see ``EmulatedCloud.contraries``."""
    return {
        "listing-lags": Contrary(
            "a machine is in no listing for its first 45 seconds", f"{provider}-listing"
        ),
        "quota-halfway": Contrary(
            "the quota has room for one spot machine of two vCPUs", f"{provider}-quota"
        ),
    }


class EmulatedAccount(EmulatedCloud):
    """An emulated cloud that serves one account with one WSGI application.

    A subclass's ``start`` calls :meth:`serve`, uses the API to create the resources that users create before
    their first job, and ends with :meth:`begin`.
    """

    def __init__(self) -> None:
        self.faults = Faults()
        """The faults of the API, and its calls; see :class:`Faults`."""
        self.front: FunctionFront | None = None
        """The server through which functions reach the account."""
        self._server: Server | None = None
        self._trail: Trail | None = None
        self._ticker: threading.Thread | None = None
        self._is_over = threading.Event()
        self._noticed: set[str] = set()

    def follow(self, plan: SpotPlan) -> None:
        """Follow the plan; see EmulatedCloud."""
        self.faults.spot_plan = plan

    @property
    def url(self) -> str:
        """Return the URL of the account; available after ``serve``."""
        assert self._server is not None
        return self._server.url

    @property
    def functions_url(self) -> str:
        """Return the URL of the account for functions; available after ``serve``."""
        assert self.front is not None
        return self.front.url

    def serve(self, app: WSGIApplication, *, address: str) -> None:
        """Serve the application at any free port of the address, and at another port for functions."""
        self._server = Server(app, host=address)
        self.front = FunctionFront(app, host=address)

    def begin(
        self,
        directory: Path,
        *,
        rights: Callable[[Call], Iterable[str]],
        resource: Callable[[Call], str],
    ) -> None:
        """From now on, record all calls in ``requests.jsonl``, and call ``tick`` every second.

        Earlier calls, which set up the account, are removed from ``faults.calls``. ``rights`` and
        ``resource`` are passed to :class:`Trail`.
        """
        self.faults.calls.clear()
        self._misbehave()
        self._trail = Trail(
            directory / "requests.jsonl",
            is_machine=self.faults.is_machine,
            rights=rights,
            resource=resource,
        )
        self.faults.on_call = self._trail
        self._ticker = threading.Thread(target=self._tick, name="scheduler", daemon=True)
        self._ticker.start()

    def _misbehave(self) -> None:
        """Apply the requested unexpected behaviour; other code reads ``faults.contrary`` for the rest."""
        self.faults.contrary = self.contrary
        if "listing-lags" in self.contrary:
            self.faults.describe_lag_seconds = 45.0
        if "tags-late" in self.contrary:
            self.faults.tag_lag_seconds = 3600.0
        if "quota-halfway" in self.contrary:
            self.faults.vcpu_quota["spot"] = 2

    @abstractmethod
    def tick(self) -> None:
        """Carry out the actions that are due by time, such as schedules and notices to functions."""

    def close_functions(self) -> None:
        """End all running functions; called after ``serve`` and before the servers stop.

        By default there are none.
        """

    def newly_noticed(self, host: MachineHost) -> Iterator[str]:
        """Yield the machines whose notice has begun since the last call."""
        for machine_id, state in host.states().items():
            if state.notice_deadline is not None and machine_id not in self._noticed:
                self._noticed.add(machine_id)
                yield machine_id

    def stop(self) -> None:
        """Stop the functions and servers; see EmulatedCloud."""
        self._is_over.set()
        if self._server is not None:
            self.close_functions()
        if self._ticker is not None:
            self._ticker.join()
            self._ticker = None
        if self._server is not None:
            self._server.close()
            self._server = None
        if self.front is not None:
            self.front.close()
            self.front = None
        if self._trail is not None:
            self._trail.close()

    def _tick(self) -> None:
        while not self._is_over.wait(TICK_SECONDS):
            self.tick()
