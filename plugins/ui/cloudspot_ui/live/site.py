"""The pages of the local site, and the requests that they make."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlencode

from markupsafe import Markup
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from cloudspot.cli.jobs import Job
from cloudspot.cli.screen.jobfields import parse_filter
from cloudspot.cli.screen.printable import in_one_line
from cloudspot.errors import CloudspotError, JobNotFound, SpecError
from cloudspot.interfaces import ObjectStore
from cloudspot.jobstore.layout.records import Summary
from cloudspot.jobstore.logs.stored_artifacts import Artifact
from cloudspot_ui.live import downloads
from cloudspot_ui.live.command_runs import ACTIONS, CommandRun
from cloudspot_ui.live.log_view import SHOWN_LINES, LogView
from cloudspot_ui.live.watching import FRESH_SECONDS, LIST_SECONDS, StoreWatch
from cloudspot_ui.page.comparing import LEAST, MOST, compare
from cloudspot_ui.page.curves import AXES
from cloudspot_ui.page.rendering import Frame, index_rows, job_page_parts, moment, render
from cloudspot_ui.page.store_story import StoreStory
from cloudspot_ui.page.story import Line

FRAME = Frame(index="/", script="/live.js")
MAX_FORM_BYTES = 10_000
MAX_LISTED = 200
"""The maximum number of jobs that a page lists; a filter finds the others."""
MAX_RUNS = 50
"""The number of commands that are remembered."""


class Site:
    """The pages of one store."""

    def __init__(self, store: ObjectStore, *, may_write: bool) -> None:
        """Serve the jobs of ``store``; ``may_write`` adds pages that run commands."""
        self._store = store
        self._actions = tuple(ACTIONS) if may_write else ()
        self._watch = StoreWatch(store, _job_links)
        self._runs: dict[int, tuple[str, CommandRun]] = {}
        self._num_runs = 0

    def application(self) -> Starlette:
        """Return the application, which does not check access."""
        page = "/jobs/{job_id}"
        routes = [
            Route("/", self._index),
            Route("/events", self._index_events),
            Route("/live.js", _script),
            Route("/compare", self._compare),
            Route(page, self._job),
            Route(f"{page}/events", self._job_events),
            Route(f"{page}/log", self._log),
            Route(f"{page}/log/events", self._log_events),
            Route(f"{page}/log.txt", self._log_file),
            Route(f"{page}/artifacts/{{name:path}}", self._artifact),
        ]
        for action in self._actions:
            routes.append(Route(f"{page}/{action}", partial(self._question, action), methods=["GET"]))
            routes.append(Route(f"{page}/{action}", partial(self._act, action), methods=["POST"]))
        if self._actions:
            routes.append(Route("/commands/{number:int}", self._run))
            routes.append(Route("/commands/{number:int}", self._answer, methods=["POST"]))
            routes.append(Route("/commands/{number:int}/events", self._run_events))
        return Starlette(routes=routes, exception_handlers={CloudspotError: _failed, HTTPException: _refused})

    # --- the list of jobs -------------------------------------------------------------------------

    def _index(self, request: Request) -> Response:
        text = request.query_params.get("filter", "")
        passes, problem = _filter(text)
        story = self._watch.story(passes)
        rows = _rows(story)
        events = f"/events?{urlencode({'filter': text})}"
        shown = render(
            "live_index.html",
            frame=FRAME, story=story, rows=rows, filter=text, filter_error=problem, events=events,
        )  # fmt: skip
        return HTMLResponse(shown)

    def _index_events(self, request: Request) -> Response:
        passes, _ = _filter(request.query_params.get("filter", ""))

        def look() -> Mapping[str, str]:
            story = self._watch.story(passes)
            return {"jobs": _rows(story), "read-at": moment(story.at)}

        return _events(_parts(request, look, LIST_SECONDS))

    def _compare(self, request: Request) -> Response:
        ids = list(dict.fromkeys(request.query_params.getlist("job")))
        if not LEAST <= len(ids) <= MOST:
            raise SpecError(f"{len(ids)} jobs are chosen; choose {LEAST} to {MOST} jobs to compare")
        stories = [self._watch.job(one).look()[0] for one in ids]
        comparison = compare(stories, datetime.now(timezone.utc))
        metrics = sorted({name for one in comparison.results for name in one["metrics"]})
        shown = render(
            "compare.html",
            frame=FRAME, comparison=comparison, axes=AXES, metrics=metrics, links=_job_url,
        )  # fmt: skip
        return HTMLResponse(shown)

    # --- a job ------------------------------------------------------------------------------------

    def _job(self, request: Request) -> Response:
        watch = self._watch.job(request.path_params["job_id"])
        story, sections = watch.look()
        parts = job_page_parts(story, sections, FRAME)
        base = _job_url(story.report["id"])
        return HTMLResponse(render("live_job.html", base=base, actions=self._actions, **parts))

    def _job_events(self, request: Request) -> Response:
        watch = self._watch.job(request.path_params["job_id"])

        def look() -> Mapping[str, str]:
            story, sections = watch.look()
            return {**sections, "read-at": moment(story.at)}

        return _events(_parts(request, look, FRESH_SECONDS))

    def _artifact(self, request: Request) -> Response:
        return downloads.artifact(self._find(request), request.path_params["name"])

    def _log_file(self, request: Request) -> Response:
        return downloads.log(self._find(request))

    def _log(self, request: Request) -> Response:
        job = self._find(request)
        asked = {name: request.query_params.get(name, "") for name in ("search", "node")}
        base = _job_url(job.id)
        note = f"The page shows the last {SHOWN_LINES} matching lines, and new ones as they arrive."
        shown = render(
            "live_log.html",
            frame=FRAME, job_id=job.id, base=base, events=f"{base}/log/events?{urlencode(asked)}",
            problem="", note=note, **asked,
        )  # fmt: skip
        return HTMLResponse(shown)

    def _log_events(self, request: Request) -> Response:
        asked = request.query_params
        view = LogView(self._find(request), asked.get("search", ""), asked.get("node", ""))
        return _events(_lines(request, view))

    def _find(self, request: Request) -> Job:
        return self._watch.job(request.path_params["job_id"]).job

    # --- commands ---------------------------------------------------------------------------------

    def _question(self, action: str, request: Request) -> Response:
        job = self._find(request)
        text, _, options = ACTIONS[action]
        shown = render(
            "live_action.html",
            frame=FRAME, action=action, job_id=job.id, base=_job_url(job.id), text=text, options=options,
        )  # fmt: skip
        return HTMLResponse(shown)

    async def _act(self, action: str, request: Request) -> Response:
        job = await asyncio.to_thread(self._find, request)
        form = await _form(request)
        _, always, options = ACTIONS[action]
        arguments = [job.id, "--store", self._store.url, *always]
        # Each option and its value are one argument, so that typed text is never taken for an option.
        arguments += [f"{option}={form[option]}" for option, _ in options if form.get(option)]
        self._num_runs += 1
        run = CommandRun(self._num_runs, action, arguments)
        self._runs[run.number] = job.id, run
        for number in list(self._runs)[:-MAX_RUNS]:
            if self._runs[number][1].exit_status is not None:
                del self._runs[number]
        return RedirectResponse(f"/commands/{run.number}", status_code=303)

    def _run(self, request: Request) -> Response:
        job_id, run = self._find_run(request)
        return HTMLResponse(render("live_run.html", frame=FRAME, run=run, base=_job_url(job_id)))

    async def _answer(self, request: Request) -> Response:
        _, run = self._find_run(request)
        form = await _form(request)
        if form.get("do") == "interrupt":
            run.end()
        else:
            run.answer(form.get("answer", ""))
        return RedirectResponse(f"/commands/{run.number}", status_code=303)

    def _run_events(self, request: Request) -> Response:
        _, run = self._find_run(request)

        def look() -> Mapping[str, str]:
            status = run.exit_status  # read before the text, which then includes all output
            return {"output": render("live_output.html", text=run.text, status=status)}

        return _events(_parts(request, look, 0.3))

    def _find_run(self, request: Request) -> tuple[str, CommandRun]:
        found = self._runs.get(request.path_params["number"])
        if found is None:
            raise HTTPException(404, f"there is no command {request.path_params['number']}; run it again")
        return found


def _job_url(job_id: str) -> str:
    return f"/jobs/{quote(job_id, safe='')}"


def _rows(story: StoreStory) -> Markup:
    return index_rows(story, max_jobs=MAX_LISTED, links=_job_url, chooses=True)


def _job_links(job_id: str) -> Mapping[str, object]:
    def download(artifact: Artifact) -> str:
        return f"{_job_url(job_id)}/artifacts/{quote(artifact.name)}"

    return {"downloads": download}


def _filter(text: str) -> tuple[Callable[[Summary], bool], str]:
    """Return the test for ``ps``'s filters, separated by spaces in ``text``, and the error message if any."""
    now = datetime.now().astimezone()
    try:
        tests = [parse_filter(one, now=now) for one in text.split()]
    except SpecError as error:
        return lambda _job: True, str(error)
    return lambda job: all(passes(job) for passes in tests), ""


# --- events ---------------------------------------------------------------------------------------


def _events(events: AsyncIterator[str]) -> Response:
    return StreamingResponse(events, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})


def _event(name: str, value: object) -> str:
    return f"event: {name}\ndata: {json.dumps(value)}\n\n"


async def _parts(
    request: Request, look: Callable[[], Mapping[str, str]], seconds: float
) -> AsyncIterator[str]:
    """Send the parts of a page that have changed, until the page is closed."""
    sent: Mapping[str, str] = {}
    yield ": hello\n\n"
    while not await request.is_disconnected():
        try:
            found = await asyncio.to_thread(look)
        except CloudspotError as error:
            yield _event("problem", in_one_line(str(error)))
        else:
            changed = {name: str(html) for name, html in found.items() if sent.get(name) != html}
            sent = found
            yield _event("parts", changed) if changed else ": nothing new\n\n"
        await asyncio.sleep(seconds)


async def _lines(request: Request, view: LogView) -> AsyncIterator[str]:
    """Send the lines of a log, beginning with the last ones, until the page is closed."""
    look: Callable[[], Sequence[Line]] = view.first
    yield _event("begin", None)
    while not await request.is_disconnected():
        try:
            found = await asyncio.to_thread(look)
        except (CloudspotError, ValueError) as error:
            yield _event("problem", in_one_line(str(error)))
            if isinstance(error, ValueError):
                yield _event("end", None)
                return
        else:
            look = view.new
            lines = [{"head": one.head, "text": one.text} for one in found]
            yield _event("lines", lines) if lines else ": nothing new\n\n"
        await asyncio.sleep(1.0)


# --- for every page -------------------------------------------------------------------------------


async def _form(request: Request) -> Mapping[str, str]:
    data = b""
    async for piece in request.stream():
        data += piece
        if len(data) > MAX_FORM_BYTES:
            raise HTTPException(413, f"the form has more than {MAX_FORM_BYTES} bytes")
    fields = parse_qs(data.decode("ascii", errors="replace"), keep_blank_values=True)
    return {name: values[-1] for name, values in fields.items()}


def _script(_request: Request) -> Response:
    return Response((Path(__file__).parent / "live.js").read_text(), media_type="text/javascript")


def _failed(_request: Request, error: Exception) -> Response:
    status = 404 if isinstance(error, JobNotFound) else 400 if isinstance(error, SpecError) else 502
    return PlainTextResponse(in_one_line(str(error)), status_code=status)


def _refused(_request: Request, error: Any) -> Response:
    return PlainTextResponse(in_one_line(error.detail), status_code=error.status_code)
