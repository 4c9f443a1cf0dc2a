"""The guard around plugins: it attributes a fault to its plugin, and cuts off a call that hangs.

The registry marks each object that it gets from a plugin (``Guard.enter``), and the guard marks the objects
that a marked object returns. A call of a marked object, by the table ``CALLS``,

- raises a CloudspotError, or else a PluginFault that names the plugin and the call, or a TransientError if
  the call may have bought or written something, so that its outcome is unknown;
- returns a value of the type that its interface declares;
- is cut off at its time limit in a process that enforces limits: it goes on in a daemon thread, and its
  result is ignored.

Objects without a mark, such as those that a test makes, are not guarded. Plugins that ship with cloudspot are
not cut off, because changing threads costs 50 µs, more than their calls to this computer. On a machine no
call is cut off: each duty has its own thread, and drivers replace a node whose heartbeat stops.
"""

from __future__ import annotations

import functools
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import FunctionType, NoneType, UnionType
from typing import Any, ClassVar, Final, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from cloudspot.calls import Call
from cloudspot.errors import CloudspotError, OverdueError, PluginError, PluginFault, TransientError, reason_of
from cloudspot.host.left_calls import LeftAloneError, call_within, inside, limits, num_hanging

R = TypeVar("R")


@dataclass(frozen=True)
class Rule:
    """The time limit of a method, and the effect of its failure."""

    seconds: float
    """How long the method may take."""
    seconds_per_mib: float = 0.0
    """The additional time for each MiB of its last argument: the data, the buffer, or their length."""
    is_callers: bool = False
    """Whether the limit is the caller's deadline, which is shorter than the plugin's limit."""
    is_unknown: bool = False
    """Whether a failed call may still have bought, changed or written something, so that it must be repeated.
    """


def _within(seconds: float, names: str, **more: Any) -> dict[str, Rule]:
    return dict.fromkeys(names.split(), Rule(seconds, **more))


CALLS: Final[Mapping[str, dict[str, Rule]]] = {
    "Provider": {
        # These make an object without sending a request, but may import an SDK.
        **_within(60.0, "provisioner preemption_source function_host image_host log_sink"),
        **_within(60.0, "account_setup"),
        **_within(60.0, "boot_profile default_store node_identity registry_login"),
        **_within(120.0, "pinned_options"),
        **_within(300.0, "inventories check"),
        **_within(120.0, "preempt", is_unknown=True),
    },
    "Provisioner": {
        **_within(60.0, "render"),
        **_within(120.0, "instances console current_price"),
        **_within(300.0, "offers"),
        **_within(120.0, "announce terminate release", is_unknown=True),
        **_within(900.0, "create", is_unknown=True),
    },
    "FunctionHost": {
        **_within(120.0, "plan status"),
        **_within(600.0, "remove", is_unknown=True),
        **_within(1800.0, "deploy", is_unknown=True),
    },
    "ImageHost": {
        **_within(120.0, "find images"),
        **_within(600.0, "save remove", is_unknown=True),
    },
    "AccountSetup": _within(300.0, "account parts settings"),
    "SetupPart": {
        **_within(120.0, "look"),
        **_within(600.0, "make remove", is_unknown=True),
    },
    "Inventory": {
        **_within(600.0, "assets"),
        **_within(300.0, "end", is_unknown=True),
    },
    "PreemptionSource": _within(60.0, "poll is_at_risk wait"),
    "Upload": {
        **_within(120.0, "abort"),
        **_within(600.0, "write", seconds_per_mib=10.0),
        **_within(300.0, "commit", is_unknown=True),
    },
    "ObjectStore": {
        # SDKs give up on a request after about a minute, and then try it again.
        **_within(120.0, "find_id hold_to head open_upload presign_get link"),
        **_within(120.0, "list_page list_pages unfinished_uploads"),
        **_within(120.0, "get_range get_range_into", seconds_per_mib=10.0),
        **_within(120.0, "put", seconds_per_mib=10.0, is_unknown=True),
        **_within(120.0, "delete abort_upload", is_unknown=True),
        **_within(300.0, "get check"),
        **_within(300.0, "establish delete_many", is_unknown=True),
        **_within(5.0, "close"),
    },
    "LogSink": {
        **_within(120.0, "streams read read_back"),
        **_within(600.0, "pieces"),
        **_within(600.0, "write remove", is_unknown=True),
    },
    "Notifier": _within(20.0, "holds_credential send"),
    "DriverTask": _within(60.0, "run"),
    "Tracker": _within(300.0, "variables"),
    # The method only calculates, and a simulation calls it thousands of times.
    "PluginPolicy": _within(math.inf, "choose"),
}
"""The time limit of each call of a plugin, by interface; for an iterator, the limit applies to each step."""

LOAD: Final = Rule(60.0)
"""The rule for the import of a plugin's module and the call of its hook."""
MAX_HANGING: Final = 4
"""A plugin with this many hanging calls is not called again until one of the calls returns."""
_BATCH_SECONDS: Final = 0.05
"""Items that an iterator yields within this time are passed between threads together."""
_MARK: Final = "_cloudspot_guard"


class _WrongAnswer(TypeError):
    """A call returned a value that its interface does not allow; the message names the value's type."""


class Guard:
    """The guard of one plugin, which all its objects share."""

    def __init__(self, plugin_name: str, *, is_cut_off: bool = True, hides_text: bool = False) -> None:
        """``plugin_name`` names the plugin in messages: ``provider "acme" of cloudspot-acme 1.2``.

        If ``is_cut_off``, its calls have time limits. If ``hides_text``, its errors may contain a secret, so
        that only their type is reported.
        """
        self._plugin_name = plugin_name
        self._is_cut_off = is_cut_off
        self._hides_text = hides_text

    def broken(self, why: str, kind: type[PluginError] = PluginError) -> PluginError:
        """Return the error with which the plugin is reported as broken."""
        return kind(f"{self._plugin_name} is broken: {why}")

    def enter(self, found: R, interface: type[Guarded]) -> R:
        """Mark an object of the plugin, so that its calls are guarded from now on.

        Raises:
            PluginError: the object lacks an attribute of its interface, or has one of another type.
        """
        if _MARK not in vars(found):
            fault = attribute_fault(found, interface)
            if fault is not None:
                raise self.broken(fault)
            vars(found)[_MARK] = self
        return found

    def run(
        self,
        what: str,
        rule: Rule,
        request: Callable[[], R],
        passes: Callable[[Exception], bool] = lambda _error: False,
    ) -> R:
        """Return the result of the plugin's code, which must end within the time limit, or raise its fault.

        ``passes`` returns whether an error other than a CloudspotError may be raised unchanged.
        """
        if inside.plugin is self:
            return request()
        if math.isinf(rule.seconds) or not self._changes_threads:
            return self._translated(what, rule, request, passes)
        if num_hanging(self) >= MAX_HANGING:
            raise OverdueError(
                f"{self._plugin_name} hangs: {what} was not attempted because {MAX_HANGING} calls are "
                "already hanging"
            )
        try:
            return call_within(
                rule.seconds, lambda: self._translated(what, rule, request, passes), owner=self
            )
        except LeftAloneError:
            unknown = "; its outcome is unknown" if rule.is_unknown else ""
            if rule.is_callers:
                waited = f"after {rule.seconds:.3g} s, when its caller stopped waiting"
                text = f"{self._plugin_name}: {what} had not ended {waited}"
                raise OverdueError(f"{text}{unknown}") from None
            text = f"{self._plugin_name} hangs: {what} has not ended within {rule.seconds:.3g} s{unknown}"
            raise OverdueError(text) from self.broken(f"{what} hangs", PluginFault)

    @property
    def _changes_threads(self) -> bool:
        """Return whether a call is made in another thread; calls nested in it are cut off with it."""
        return limits.are_enforced and self._is_cut_off and inside.plugin is None

    def _translated(
        self, what: str, rule: Rule, request: Callable[[], R], passes: Callable[[Exception], bool]
    ) -> R:
        outer, inside.plugin = inside.plugin, self
        try:
            return request()
        except CloudspotError:
            raise
        except (Exception, SystemExit) as error:
            if isinstance(error, Exception) and passes(error):
                raise
            raised = f"raised {type(error).__name__ if self._hides_text else reason_of(error)}"
            fault = str(error) if isinstance(error, _WrongAnswer) else raised
            broken = self.broken(f"{what} {fault}", PluginError if rule is LOAD else PluginFault)
            broken.__cause__ = error
            if not rule.is_unknown:
                raise broken from error
            raise TransientError(f"{broken}; its outcome is unknown") from broken
        finally:
            inside.plugin = outer

    def call(
        self,
        called: _Called,
        method: Callable[..., Any],
        target: Guarded,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Call a method of the plugin's object ``target``."""
        rule, buffer, request = called.rule, None, args[0] if args else None
        if rule.seconds_per_mib and args:
            seconds = rule.seconds + rule.seconds_per_mib * _num_bytes(args[-1]) / (1 << 20)
            rule = replace(rule, seconds=seconds)
        if self._changes_threads and args:
            if isinstance(request, Call):
                left = request.seconds_left()
                if left <= 0:
                    raise OverdueError(
                        f"{self._plugin_name}: {called.call_name} was not attempted because its deadline has "
                        "passed"
                    )
                rule = rule if rule.seconds <= left else replace(rule, seconds=left, is_callers=True)
                deadline = min(request.deadline, time.monotonic() + rule.seconds)
                args = (msgspec.structs.replace(request, deadline=deadline), *args[1:])
            elif isinstance(args[-1], bytearray | memoryview):
                # A call that was cut off may still use its buffer, so it gets a copy.
                buffer = args[-1]
                args = (*args[:-1], bytearray(buffer) if called.name == "get_range_into" else bytes(buffer))
        try:
            found = self.run(
                called.call_name,
                rule,
                lambda: self._marked(called.answer(method(target, *args, **kwargs))),
                lambda error: isinstance(error, ValueError) and target._may_refuse(called.name, args, kwargs),  # noqa: SLF001
            )
        finally:
            target._note_call(called.name)  # noqa: SLF001
        if get_origin(called.returns) is Iterator:
            return self._iterated(called, found)
        if buffer is not None and called.name == "get_range_into":
            memoryview(buffer).cast("B")[:found] = args[-1][:found]
        return found

    def _marked(self, found: Any) -> Any:
        """Mark the plugin's objects in the result of a call, and return the result."""
        for one in found if isinstance(found, list | tuple) else (found,):
            if isinstance(one, Guarded):
                class_: Any = type(one)
                self.enter(one, _interface_of(class_))
        return found

    def _iterated(self, called: _Called, found: Iterator[R]) -> Iterator[R]:
        """Yield the items of a call's iterator; each step is guarded like a call."""
        failed: list[BaseException] = []
        is_over = False

        def step() -> list[R]:
            nonlocal is_over
            items: list[R] = []
            try:
                if failed:
                    raise failed[0]
                for item in found:
                    items.append(item)
                    if time.monotonic() >= end:
                        return items
            except BaseException as error:
                if not items:
                    raise
                failed.append(error)
                return items
            is_over = True
            return items

        while not is_over:
            end = time.monotonic() + _BATCH_SECONDS * self._changes_threads
            yield from self.run(called.call_name, called.rule, step)


@dataclass(frozen=True)
class _Called:
    """A method of an interface that a plugin implements."""

    interface: type[Guarded]
    name: str

    @functools.cached_property
    def rule(self) -> Rule:
        return CALLS[self.interface.__name__][self.name]

    @functools.cached_property
    def returns(self) -> Any:
        return get_type_hints(getattr(self.interface, self.name))["return"]

    @functools.cached_property
    def call_name(self) -> str:
        return f"{self.interface.__name__}.{self.name}()"

    def answer(self, found: Any) -> Any:
        """Return the method's result if it is of the declared type; a generator becomes a tuple.

        Raises:
            _WrongAnswer: the result is of another type.
        """
        origin = get_origin(self.returns)
        if origin is Iterator:
            return self._items(iter(found))
        if origin is Sequence and isinstance(found, Iterable) and not isinstance(found, Sequence):
            found = tuple(found)
        _check_type(found, self.returns)
        return found

    def _items(self, found: Iterator[R]) -> Iterator[R]:
        for item in found:
            _check_type(item, get_args(self.returns)[0])
            yield item


class Guarded:
    """The base of the interfaces: calls of a marked object pass through its plugin's guard."""

    _is_checked: ClassVar[bool] = True
    """Whether results are checked; False for a class that passes on another object's checked results."""

    def __init_subclass__(cls) -> None:
        """Put the guard around the methods in ``CALLS`` that the class or one of its other bases defines."""
        super().__init_subclass__()
        if Guarded in cls.__bases__:
            return
        for interface in (one for one in cls.__mro__ if Guarded in one.__bases__):
            for name in CALLS[interface.__name__]:
                origin = next(one for one in cls.__mro__ if name in one.__dict__)
                if origin is cls or not issubclass(origin, interface):
                    setattr(cls, name, _guarded(cls, interface, name, origin.__dict__[name]))

    def _may_refuse(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Return whether a call with these arguments may raise ValueError."""
        return False

    def _note_call(self, name: str) -> None:
        """Hook for subclasses: a call was made, whether it succeeded or failed."""


def _guarded(class_: type[Guarded], interface: type[Guarded], name: str, method: Any) -> Any:
    called = _Called(interface, name)
    check = _checks.get((interface, name)) if class_._is_checked else None  # noqa: SLF001

    @functools.wraps(method)
    def typed(self: Guarded, /, *args: Any, **kwargs: Any) -> Any:
        return called.answer(method.__get__(self, type(self))(*args, **kwargs))

    run = method if check is None else check(typed)
    if not isinstance(run, FunctionType):  # such as a static method

        def run(self: Guarded, /, *args: Any, **kwargs: Any) -> Any:
            return method.__get__(self, type(self))(*args, **kwargs)

    @functools.wraps(method)
    def guarded(self: Guarded, /, *args: Any, **kwargs: Any) -> Any:
        guard: Guard | None = self.__dict__.get(_MARK)
        return run(self, *args, **kwargs) if guard is None else guard.call(called, run, self, args, kwargs)

    return guarded


_checks: dict[tuple[type[Guarded], str], Callable[[Any], Any]] = {}


def check_answers(interface: type[Guarded], **checks: Callable[[Any], Any]) -> None:
    """Wrap the named methods of all later subclasses in ``checks``, which check their results."""
    _checks.update({(interface, name): check for name, check in checks.items()})


@functools.cache
def _interface_of(class_: Any) -> type[Guarded]:
    interface: type[Guarded] = next(one for one in class_.__mro__ if Guarded in one.__bases__)
    return interface


# --- the types that an interface declares ---------------------------------------------------------


def attribute_fault(found: object, interface: type[Guarded]) -> str | None:
    """Return the first fault in the attributes that an object's or class's interface declares, or None."""
    name = found.__name__ if isinstance(found, type) else type(found).__name__
    for attribute, hint in get_type_hints(interface).items():
        is_of_class = get_origin(hint) is ClassVar
        if attribute.startswith("_") or (isinstance(found, type) and not is_of_class):
            continue
        try:
            value = getattr(found, attribute)
        except AttributeError:
            return f"{name} has no {attribute}"
        except Exception as error:  # noqa: BLE001 - a property may raise anything
            return f"{name}.{attribute} raised {reason_of(error)}"
        wanted = get_args(hint)[0] if is_of_class else hint
        if not _fits(value, wanted):
            return f"{name}.{attribute} is {_kind_of(value)}, not {_name_of(wanted)}"
    return None


def _fits(value: Any, hint: Any) -> bool:
    """Return whether the value is of the type; the contents of an iterator or a mapping are not checked."""
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, one) for one in get_args(hint))
    if origin is type:
        return isinstance(value, type) and issubclass(value, get_args(hint))
    if origin in (Sequence, tuple, frozenset):
        wanted = frozenset if origin is frozenset else Sequence
        is_one = isinstance(value, wanted) and not isinstance(value, str | bytes)
        return is_one and all(_fits(one, get_args(hint)[0]) for one in value)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    plain = origin or hint
    return plain is Any or not isinstance(plain, type) or isinstance(value, plain)


def _check_type(value: Any, hint: Any) -> None:
    if hint is NoneType:
        return
    if not _fits(value, hint):
        raise _WrongAnswer(f"returned {_kind_of(value)}, not {_name_of(hint)}")
    if isinstance(value, msgspec.Struct):
        kind: Any = type(value)
        for name, wanted in _fields(kind).items():
            found = getattr(value, name)
            if not _fits(found, wanted):
                fault = f"{name} is {_kind_of(found)}, not {_name_of(wanted)}"
                raise _WrongAnswer(f"returned {_name_of(kind)} with a wrong field: {fault}")


@functools.cache
def _fields(struct: Any) -> Mapping[str, Any]:
    hints = get_type_hints(struct)
    return {name: hints[name] for name in struct.__struct_fields__}


def _kind_of(value: Any) -> str:
    """Return the type of a value without its content, which may be a secret."""
    if value is None or isinstance(value, type):
        return "None" if value is None else f"the class {value.__name__}"
    inner = sorted({type(one).__name__ for one in value}) if isinstance(value, list | tuple) else []
    return f"{type(value).__name__}[{', '.join(inner)}]" if inner else type(value).__name__


def _name_of(hint: Any) -> str:
    is_plain = isinstance(hint, type) and get_origin(hint) is None  # Python 3.10 calls tuple[int] a type
    return hint.__name__ if is_plain else re.sub(r"\w+\.", "", str(hint))


def _num_bytes(value: Any) -> int:
    return value if isinstance(value, int) else memoryview(value).nbytes if _is_data(value) else 0


def _is_data(value: Any) -> bool:
    return isinstance(value, bytes | bytearray | memoryview)
