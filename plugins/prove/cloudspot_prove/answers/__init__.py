"""Answers the open questions from a run's measurements and recordings; does no I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final, Literal

import msgspec

from cloudspot_prove.differences import names_in
from cloudspot_prove.questions import Question, questions_of
from cloudspot_prove.recording import Exchange
from cloudspot_prove.run_record import Began, StepEnded

Verdict = Literal["as expected", "otherwise", "not answered"]


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A run's answer to a question."""

    verdict: Verdict
    text: str
    """The answer in a sentence, or why there is none."""
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True)
class Seen:
    """All data that a run has collected."""

    began: Began
    ended: Mapping[str, StepEnded]
    exchanges: Sequence[Exchange]

    def passed(self, step: str) -> bool:
        """Return whether a step passed."""
        return step in self.ended and self.ended[step].status == "passed"

    def fact(self, step: str, name: str) -> Any:
        """Return a value that a step has measured, or None if it has not measured it."""
        return self.ended[step].facts.get(name) if step in self.ended else None

    def witnessed(self, fact: str, *steps: str) -> list[tuple[int, Any]]:
        """Return (rank, value) for each time that machines reported this fact, in the order of the lines."""
        found = []
        for step in steps or tuple(self.ended):
            for job in self.fact(step, "jobs") or ():
                found += [
                    (one["rank"], one["value"]) for one in job.get("witness", ()) if one["fact"] == fact
                ]
        return found

    def notices(self, *steps: str) -> list[Mapping[str, Any]]:
        """Return the notices that reached the trainings."""
        jobs = [job for step in steps for job in self.fact(step, "jobs") or ()]
        return [notice for job in jobs for notice in job.get("notices", ())]

    def calls(self, action: str, *steps: str) -> list[Exchange]:
        """Return the recorded requests of an operation, given by name or by the end of method and path."""
        return [
            one
            for one in self.exchanges
            if (one.action == action or one.action.endswith(action)) and (not steps or one.step in steps)
        ]

    def refusals(self, action: str, *steps: str) -> dict[str, list[Exchange]]:
        """Return the refused requests of an operation, by error code."""
        found: dict[str, list[Exchange]] = {}
        for one in self.calls(action, *steps):
            if one.code:
                found.setdefault(one.code, []).append(one)
        return found


AnswerOf = Callable[[Seen], Answer | None]
DENIED: Final = frozenset(
    {
        "AccessDenied",
        "AccessDeniedException",
        "Forbidden",
        "Forbidden.RAM",
        "NoPermission",
        "UnauthorizedOperation",
        "forbidden",
    }
)
"""The error codes with which the clouds refuse callers that lack a permission."""


def expected(text: str, *evidence: str) -> Answer:
    """Return an answer that is as cloudspot expects."""
    return Answer(verdict="as expected", text=text, evidence=evidence)


def otherwise(text: str, *evidence: str) -> Answer:
    """Return an answer that differs from cloudspot's expectation."""
    return Answer(verdict="otherwise", text=text, evidence=evidence)


def unanswered(why: str, *evidence: str) -> Answer:
    """Return the reason why there is no answer."""
    return Answer(verdict="not answered", text=why, evidence=evidence)


def answer_all(seen: Seen) -> dict[str, tuple[Question, Answer]]:
    """Return the questions about the run's cloud with their answers, by the question's id."""
    provider = seen.began.provider
    known: Mapping[str, AnswerOf] = import_module(f"cloudspot_prove.answers.{provider}").ANSWERS
    return {one.id: (one, _answer(one, known.get(one.id), seen)) for one in questions_of(provider)}


def _answer(question: Question, find: AnswerOf | None, seen: Seen) -> Answer:
    found = None if find is None else find(seen)
    if found is not None:
        return found
    if "setup" in question.steps and len(question.steps) == 1:
        return unanswered("`cloudspot setup` answers it, which is no part of this run")
    reasons = []
    for step in question.steps:
        ended = seen.ended.get(step)
        if ended is None:
            reasons.append(f"the step {step} was not taken")
        elif ended.status != "passed":
            reasons.append(f"the step {step} was {ended.status}{f': {ended.why}' if ended.why else ''}")
    return unanswered("; ".join(reasons) or "a run cannot see it: look yourself")


# --- answers that several clouds share ---------------------------------------------------------


def of_steps(text: str, *steps: str) -> AnswerOf:
    """Answer "as expected" with ``text`` if all of these steps have passed."""

    def find(seen: Seen) -> Answer | None:
        if all(seen.passed(one) for one in steps):
            return expected(text, *(f"the step {one} passed" for one in steps))
        failed = [
            seen.ended[one] for one in steps if one in seen.ended and seen.ended[one].status == "failed"
        ]
        return otherwise("it failed", *(f"{one.step}: {one.why}" for one in failed)) if failed else None

    return find


def of_checks(text: str, *names: str) -> AnswerOf:
    """Answer according to those lines of ``providers check`` whose names begin with ``names``."""

    def find(seen: Seen) -> Answer | None:
        checks: Mapping[str, bool] = seen.fact("check", "checks") or {}
        lines = {
            name: ok
            for name, ok in checks.items()
            if name.partition(": ")[2].startswith(names) or name.startswith(names)
        }
        if not lines:
            return None
        failed = [name for name, ok in lines.items() if not ok]
        if failed:
            return otherwise("`providers check` refuses it", *(f"{name}: FAILED" for name in failed))
        return expected(text, *(f"{name}: ok" for name in lines))

    return find


def creates_once(seen: Seen) -> Answer | None:
    """Answer whether the store refused to create an object twice."""
    found = seen.fact("check", "creates_once")
    if found is None:
        return None
    return (
        expected("it refuses to create an object that is there", "a second create was refused")
        if found
        else otherwise("it creates an object twice", "a second create was accepted")
    )


def tokens(seen: Seen) -> Answer | None:
    """Answer whether a repeated launch request returned the same machines."""
    repeats: Sequence[Mapping[str, Any]] = seen.fact("repeat", "repeats") or ()
    if not repeats:
        return None
    lines = [
        f"{one['after_seconds']:.0f} s after the launch: "
        + (
            f"refused, {one['refused']}"
            if one["refused"]
            else "the same"
            if one["same"]
            else f"{one['extra']} more"
        )
        for one in repeats
    ]
    if all(one["same"] for one in repeats):
        longest = max(one["after_seconds"] for one in repeats)
        return expected(f"the same machines, for {longest:.0f} s at least", *lines)
    if any(one["extra"] for one in repeats):
        return otherwise("a repeated request bought other machines, which were ended", *lines)
    return otherwise("a repeated request was refused, and bought nothing", *lines)


def quota(text: str, create: str, *codes: str) -> AnswerOf:
    """Answer whether a launch was refused for lack of quota, judged by these error codes."""

    def find(seen: Seen) -> Answer | None:
        found = {code for code in seen.refusals(create) if code in codes}
        if found:
            return otherwise(text, *(f"{create.rpartition('/')[2]}: {one}" for one in sorted(found)))
        if seen.passed("two-nodes"):
            return expected("it has room for two machines", "no launch was refused for quota")
        return None

    return find


def refused_before(calls: Sequence[Exchange], code: str) -> tuple[int, float]:
    """Return how often a launch was refused with a code before it was accepted, and over how many seconds.

    If there are several steps, the longest such time counts.
    """
    found = [(0, 0.0)]
    for step in {one.step for one in calls}:
        refused: list[float] = []
        for one in calls:
            if one.step == step and one.code == code:
                refused.append(one.at)
            elif one.step == step and not one.code:
                break
        else:
            continue  # In this step, the launch was never accepted.
        if refused:
            found.append((len(refused), refused[-1] - refused[0]))
    return max(found, key=lambda one: one[1])


def denials(seen: Seen) -> list[str]:
    """Return the operations that were refused for lack of a permission, each with its code."""
    found = {f"{one.action}: {one.code}" for one in seen.exchanges if one.code in DENIED}
    return sorted(found)


def listing_lag(seen: Seen, create: str, listing: str, *, where: Callable[[Exchange], Any]) -> Answer | None:
    """Answer how long machines were missing in listings after their launch.

    ``where`` returns the part of a recorded create that names the machines.
    """
    worst, num_lacking, num_created = 0.0, 0, 0
    for made in seen.calls(create):
        names = set(names_in(where(made))) if not made.code else set()
        lacking: list[float] = []
        for look in seen.calls(listing, made.step) if names else ():
            if look.at <= made.at or look.code:
                continue
            if names & set(names_in(look.answer)):
                # A machine that no listing ever shows was ended at once.
                num_created += 1
                num_lacking += len(lacking)
                worst = max([worst, *lacking])
                break
            lacking.append(look.at - made.at)
    if not num_created:
        return None
    if not num_lacking:
        return expected("a listing showed each machine at once", f"{num_created} launches were looked for")
    return otherwise(
        f"a machine was in no listing for {worst:.0f} s",
        f"{num_lacking} listings after a launch lacked its machines",
    )


def values_at(value: Any, *path: str) -> Iterator[Any]:
    """Yield the values at a path of field names, in each item of a list; ``*`` stands for any name."""
    if isinstance(value, list):
        for one in value:
            yield from values_at(one, *path)
    elif not path:
        yield value
    elif path[0] == "*" and isinstance(value, Mapping):
        for one in value.values():
            yield from values_at(one, *path[1:])
    elif isinstance(value, Mapping) and path[0] in value:
        yield from values_at(value[path[0]], *path[1:])
