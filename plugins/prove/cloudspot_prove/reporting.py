"""The report of a run, as JSON values, as a page, and as text for the terminal."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from cloudspot.host.partial_files import whole_file
from cloudspot_prove.answers import Seen, answer_all
from cloudspot_prove.clouds import cloud_of
from cloudspot_prove.questions import STEPS
from cloudspot_prove.recording import Head, read_all, write_whole
from cloudspot_prove.run_record import RunRecord

FORMAT: Final = 1
DISTRIBUTIONS: Final = (
    "cloudspot",
    "cloudspot-prove",
    "cloudspot-{provider}",
    "aliyun-python-sdk-core",
    "boto3",
    "botocore",
    "google-cloud-compute",
    "google-cloud-storage",
    "kubernetes",
    "oss2",
    "torch",
)


def report_of(record: RunRecord) -> dict[str, Any]:
    """Return the report; each of its texts is cloudspot's own or is masked."""
    began, ended = record.began, record.ended
    seen = Seen(began, ended, read_all(record.recordings))
    answers = answer_all(seen)
    cleaned, compared = record.cleaned, record.compared
    leftovers = [] if cleaned is None else list(cleaned.leftovers)
    jobs = [job for one in ended.values() for job in one.facts.get("jobs", ())]
    spent = sum(job["cost"]["spent"] for job in jobs if "cost" in job)
    currencies = sorted({job["cost"]["currency"] for job in jobs if "cost" in job})
    different = [name for name, (_, answer) in answers.items() if answer.verdict == "otherwise"]
    return {
        "format": FORMAT,
        "run": began.run,
        "provider": began.provider,
        "began": datetime.fromtimestamp(began.at, timezone.utc).isoformat(timespec="seconds"),
        "passed": all(one.status != "failed" for one in ended.values()) and not different and not leftovers,
        "questions": {
            name: {
                "question": question.text,
                "verdict": answer.verdict,
                "answer": answer.text,
                "evidence": list(answer.evidence),
                "otherwise": question.otherwise,
            }
            for name, (question, answer) in answers.items()
        },
        "answered_otherwise": different,
        "different_from_the_emulation": [] if compared is None else list(compared.differences),
        "not_compared": "it was not tried" if compared is None else compared.why_not,
        "steps": {
            step: {
                "what": STEPS[step],
                "status": ended[step].status,
                "why": ended[step].why,
                "seconds": ended[step].seconds,
                "facts": {name: one for name, one in ended[step].facts.items() if name != "jobs"},
                "jobs": ended[step].facts.get("jobs", []),
            }
            for step in began.steps
            if step in ended
        },
        "left_behind": leftovers,
        "bill": {
            "computed": round(spent, 6),
            "currency": ", ".join(one for one in currencies if one),
            "limit": began.max_cost,
            "of_the_cloud": cloud_of(began.provider).bill,
        },
        "versions": _versions(began.provider),
        "num_recorded": len(seen.exchanges),
    }


def save(report: Mapping[str, Any], record: RunRecord, directory: Path) -> list[Path]:
    """Write the report as JSON and as a page, and the recording beside it; return the files."""
    stem = f"cloudspot-prove-{report['provider']}-{report['run']}"
    data, page, recording = (directory / f"{stem}{end}" for end in (".json", ".html", ".recording.jsonl"))
    with whole_file(data) as file:
        file.write(json.dumps(report, indent=2).encode())
    with whole_file(page) as file:
        file.write(page_of(report).encode())
    head = Head(provider=report["provider"], versions=dict(report["versions"]))
    write_whole(recording, head, read_all(record.recordings))
    return [page, data, recording]


def page_of(report: Mapping[str, Any]) -> str:
    """Return the report as a page that loads nothing and runs nothing."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("cloudspot_prove", "."), autoescape=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["marked"] = _marked
    return str(environment.get_template("report.html").render(report=report))


def _marked(text: str) -> Any:
    """Return a text, fully escaped, in which text between backticks is shown as code."""
    import markupsafe

    parts = [markupsafe.escape(one) for one in text.split("`")]
    shown = [
        one if i % 2 == 0 else markupsafe.Markup("<code>{}</code>").format(one) for i, one in enumerate(parts)
    ]
    return markupsafe.Markup("").join(shown)


def shown_lines(report: Mapping[str, Any]) -> list[str]:
    """Return the report for the terminal, with all that it reveals about the account."""
    lines = [f"run {report['run']} on {report['provider']}, {report['began']}", ""]
    for name, one in report["questions"].items():
        lines.append(f"{one['verdict'].upper():>12}  {name}: {one['answer']}")
        lines += [f"{'':14}- {line}" for line in one["evidence"]]
        if one["verdict"] == "otherwise":
            lines.append(f"{'':14}so: {one['otherwise']}")
    lines.append("")
    for name, one in report["steps"].items():
        text = ", ".join(filter(None, (one["status"], one["why"], f"{one['seconds']:.0f} s")))
        lines.append(f"step {name}: {text}")
    lines.append("")
    for one in report["different_from_the_emulation"]:
        lines.append(f"{one['kind']:>5}  {one['action']}  {one['where']}: {one['text']}")
    text = report["not_compared"] or f"{len(report['different_from_the_emulation'])} differences"
    lines.append(f"compared with the emulation: {text}")
    bill = report["bill"]
    lines += [
        "",
        f"left behind and ended: {', '.join(report['left_behind']) or 'nothing'}",
        f"computed bill: {bill['computed']:.4f} {bill['currency']} of {bill['limit']:g}",
        f"the cloud's: {bill['of_the_cloud']}",
        f"versions: {', '.join(f'{name} {one}' for name, one in report['versions'].items())}",
    ]
    return lines


def _versions(provider: str) -> dict[str, str]:
    found = {"python": platform.python_version(), "system": platform.system()}
    for name in DISTRIBUTIONS:
        full = name.format(provider=provider)
        try:
            found[full] = version(full)
        except PackageNotFoundError:
            continue
    return found
