"""Writes what in the documentation follows from the code, and the JSON Schema of the job file.

    python docs/generate.py            # rewrite what is out of date, and name it
    python docs/generate.py --check    # only name it, and end with 1

In docs/cli.md the usage and the options of each command come from click; in docs/job-file.md the fields
come from the types and their docstrings; in docs/architecture.md the rooms and layers from the import
linter's contract and the rooms' first lines; in docs/plugin-kits.md what is broken on purpose from the
tests of the kits, and how long each call of a plugin may take; in docs/outputs.md the names of what is
never kept from the agent's lists. docs/plugin-api.txt is all that plugins build on.
What is generated stands between two comments; the rest is written by hand.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from inspect import getsource
from pathlib import Path

import click
import msgspec
from msgspec import inspect

import cloudspot
from cloudspot.agent.delivery import outputs
from cloudspot.agent.training.launching.variables import PROMISED
from cloudspot.calls.guard import CALLS
from cloudspot.cli.config import UserConfig
from cloudspot.cli.main import SHORT_HELPS, program
from cloudspot.cli.sharedoptions import DEBUG_HELP, JSON_HELP, STORE_HELP
from cloudspot.emulation.cloud import EmulatedCloud
from cloudspot.jobfile.data import DataSpec
from cloudspot.jobfile.json_schema import field_docs, job_schema
from cloudspot.jobfile.spec import JobSpec, Nodes
from cloudspot.jobfile.toml import read_toml
from cloudspot.local.options import LocalOptions
from cloudspot.model import Capability
from cloudspot.registry import provider_class, sandbox_class

ROOT = Path(__file__).resolve().parents[1]
SCHEMA = "cloudspot/job.schema.json"
SURFACE = "docs/plugin-api.txt"
WIDTH = 100

_SHARED = (STORE_HELP, JSON_HELP, DEBUG_HELP)
"""Of the options that every command has: the page tells of them once."""

_REGION = re.compile(r"(<!-- generated: (.*?) -->\n)(.*?)(<!-- end -->\n)", re.DOTALL)


def main() -> int:
    """Bring the files up to date; return the exit status."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; end with 1 where a file differs")
    only_check = parser.parse_args().check
    stale = [name for name, text in generated().items() if _read(ROOT / name) != text]
    for name in stale:
        print(f"{name} {'is out of date; run: python docs/generate.py' if only_check else 'was rewritten'}")
        if not only_check:
            (ROOT / name).write_text(generated()[name], encoding="utf-8")
    return 1 if only_check and stale else 0


def generated() -> Mapping[str, str]:
    """Return the text that each file should have, by its path in the repository."""
    return {
        "README.md": _with_regions(
            (ROOT / "README.md").read_text(encoding="utf-8"), {"commands": _commands("docs/cli.md")}
        ),
        "docs/cli.md": _with_regions((ROOT / "docs" / "cli.md").read_text(encoding="utf-8"), cli_regions()),
        "docs/job-file.md": _with_regions(
            (ROOT / "docs" / "job-file.md").read_text(encoding="utf-8"), job_file_regions()
        ),
        "docs/architecture.md": _with_regions(
            (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"), architecture_regions()
        ),
        "docs/plugin-kits.md": _with_regions(
            (ROOT / "docs" / "plugin-kits.md").read_text(encoding="utf-8"),
            {
                "broken on purpose": broken_on_purpose(),
                "capabilities": capabilities(),
                "time limits": time_limits(),
            },
        ),
        "docs/outputs.md": _with_regions(
            (ROOT / "docs" / "outputs.md").read_text(encoding="utf-8"), {"never kept": never_kept()}
        ),
        **_first_run(),
        SURFACE: "\n".join(surface()) + "\n",
        SCHEMA: json.dumps(job_schema({"local": LocalOptions}), indent=2) + "\n",
        **_plugin_pages(),
    }


_PLUGINS = (
    ("aliyun", "AliyunOptions"),
    ("aws", "AwsOptions"),
    ("gcp", "GcpOptions"),
    ("kubernetes", "KubernetesOptions"),
)
"""Those of this repository that have a page with a table of their options."""


def _first_run() -> dict[str, str]:
    """Return the page of the first run, and that of the sandboxes, if what they describe is installed."""
    pages = {}
    if find_spec("cloudspot_prove") is not None:
        page = (ROOT / "docs" / "first-real-run.md").read_text(encoding="utf-8")
        regions = {f"questions about {name}": open_questions(name) for name, _ in _PLUGINS}
        pages["docs/first-real-run.md"] = _with_regions(page, regions)
    if all(find_spec(f"cloudspot_{name}_sandbox") is not None for name, _ in _PLUGINS):
        page = (ROOT / "docs" / "sandbox.md").read_text(encoding="utf-8")
        pages["docs/sandbox.md"] = _with_regions(page, {"contraries": contraries()})
    return pages


def open_questions(provider: str) -> str:
    """Return the open questions about a cloud as a table."""
    found = import_module("cloudspot_prove.questions").questions_of(provider)
    rows = [f"| `{one.id}` | {one.text} | {', '.join(one.steps)} | {one.otherwise} |" for one in found]
    head = ["| id | open question | step | if not |", "|---|---|---|---|"]
    return "\n".join([*head, *rows]) + "\n"


def contraries() -> str:
    """Return what the sandboxes do otherwise on request, each with the question that it is the answer to."""
    rows = ["| `--contrary` | in | then | question |", "|---|---|---|---|"]
    for provider, _ in _PLUGINS:
        cloud = sandbox_class(provider, EmulatedCloud)  # type: ignore[type-abstract]
        rows += [
            f"| `{name}` | {provider} | {one.text} | `{one.question}` |"
            for name, one in sorted(cloud.contraries.items())
        ]
    return "\n".join(rows) + "\n"


def _plugin_pages() -> dict[str, str]:
    """Return the pages of the plugins of this repository that are installed."""
    pages = {}
    for name, options in _PLUGINS:
        if find_spec(f"cloudspot_{name}") is not None:
            found = getattr(import_module(f"cloudspot_{name}.options"), options)
            page = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
            regions = _provider_regions(f"providers.{name}", found)
            pages[f"docs/{name}.md"] = _with_regions(page, regions)
    return pages


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


def _with_regions(text: str, regions: Mapping[str, str]) -> str:
    """Return the text with each region's content replaced.

    Raises:
        SystemExit: a region stands there that is not known, or one is missing.
    """
    named = [match[2] for match in _REGION.finditer(text)]
    if sorted(named) != sorted(regions):
        wrong = sorted(set(named) ^ set(regions)) or named
        raise SystemExit(
            f"regions that are there and should not be, are missing, or are there twice: {wrong}"
        )
    return _REGION.sub(lambda match: f"{match[1]}{regions[match[2]]}{match[4]}", text)


# --- the rooms of the house ---------------------------------------------------------------------


def architecture_regions() -> dict[str, str]:
    """Return the layers of the import linter's contract, and what each room in them holds."""
    contracts = read_toml(ROOT / "pyproject.toml")["tool"]["importlinter"]["contracts"]
    (layers,) = (one["layers"] for one in contracts if one["id"] == "layers")
    rooms = [room for layer in layers for room in re.findall(r"\w+", layer)]
    rows = []
    for room in rooms:
        package = Path(cloudspot.__file__).parent / room
        path, name = (
            (package / "__init__.py", room)
            if package.is_dir()
            else (package.with_suffix(".py"), f"{room}.py")
        )
        line = _cell(_first_line(path).replace("``", "`"))
        rows.append(f"| [`{room}`](../cloudspot/{name}) | {line} |")
    return {
        "layers": "\n".join(("", "```", *layers, "```", "", "")),
        "rooms": "\n".join(("", "| room of `cloudspot` | what it holds |", "|---|---|", *rows, "", "")),
    }


def _first_line(path: Path) -> str:
    doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    assert doc, f"{path} does not say what it holds"
    return doc.partition("\n")[0]


# --- what is no output --------------------------------------------------------------------------


def never_kept() -> str:
    """Return the names of files that are never kept, as a table."""
    rows = (
        ("secrets", outputs.SECRETS),
        ("directories with secrets", outputs.SECRET_DIRECTORIES),
        ("leftovers, core dumps among them", outputs.LEFTOVERS),
        ("directories that are environments and caches, hidden ones too", outputs.CACHES),
        ("hidden directories that are kept", sorted(outputs.HIDDEN_RESULTS)),
        ("programs: kept, but they do not return", outputs.PROGRAMS),
    )
    cells = (f"| {what} | {' '.join(f'`{name}`' for name in names)} |" for what, names in rows)
    return "\n".join(("", "| | |", "|---|---|", *cells, "", ""))


# --- what the kits catch ------------------------------------------------------------------------


def capabilities() -> str:
    """Return the table of what a provider can declare, with those of this repository that do."""
    providers = ("local", *(name for name, _ in _PLUGINS))
    known = {name: provider_class(name).capabilities for name in providers}
    rows = [
        f"| `{one.name}` | {text} | {', '.join(name for name in providers if one in known[name])} |"
        for one, text in zip(Capability, constant_docs(Capability), strict=True)
    ]
    return "\n".join(["", "| capability | what it means | declared by |", "|---|---|---|", *rows, "", ""])


def constant_docs(kind: type) -> list[str]:
    """Return the docstrings below the constants of a class, each on one line."""
    (body,) = ast.parse(textwrap.dedent(getsource(kind))).body
    assert isinstance(body, ast.ClassDef)
    values = [one.value for one in body.body[1:] if isinstance(one, ast.Expr)]
    return [
        " ".join(str(one.value).split()).replace("``", "`") for one in values if isinstance(one, ast.Constant)
    ]


def broken_on_purpose() -> str:
    """Return a table of the parts of plugins that tests break, and of the kits' tests that fail then."""
    sys.path.insert(0, str(ROOT / "tests"))
    rows = [
        f"| {kind.__doc__} | {_with_counts(vars(kind)['broken'])} |"
        for name in ("machines", "purchases", "offers", "notices", "providers", "stores")
        for kind in vars(import_module(f"support.worlds.broken_{name}")).values()
        if isinstance(kind, type) and "broken" in vars(kind)
    ]
    return "\n".join(("", "| what is wrong | tests that fail (`test_...`) |", "|---|---|", *rows, "", ""))


_SHOWN = 3
"""How many tests a row names; the classes themselves have all of them."""


def _with_counts(promises: Iterable[str]) -> str:
    """Return the first tests; one of which several cases fail is named once, with their number."""
    cases: dict[str, list[str]] = {}
    for promise in promises:
        cases.setdefault(promise.partition("[")[0], []).append(promise)
    names = [
        f"`{found[0]}`".replace("|", r"\|") if len(found) == 1 else f"`{name}` ({len(found)})"
        for name, found in cases.items()
    ]
    more = [f"and {len(names) - _SHOWN} more"] if len(names) > _SHOWN else []
    return ", ".join([*names[:_SHOWN], *more])


# --- what plugins build on ----------------------------------------------------------------------

COVERED = (
    "calls",
    "decoding",
    "emulation",
    "errors",
    "hookspecs",
    "host.paced_http",
    "interfaces",
    "jobfile.quantities",
    "market.plugin_policy",
    "model",
    "plugin",
    "testing",
)
"""The modules of cloudspot, and packages with all of theirs, that the version of the interfaces covers."""


def surface() -> Iterator[str]:
    """Yield all public names of these modules with their signatures and the texts of fields."""
    root = Path(cloudspot.__file__).parent
    yield "# All that plugins build on, written by docs/generate.py. What a plugin would notice raises"
    yield "# cloudspot.hookspecs.API_VERSION: see Compatibility in docs/architecture.md."
    for name in COVERED:
        place = root.joinpath(*name.split("."))
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]:
            parts = path.relative_to(root).with_suffix("").parts
            if parts[:-1] == ("testing", "job") or parts == ("calls", "guard"):
                continue  # a script of the kits, and what nobody but cloudspot calls
            lines = [line for one in ast.parse(path.read_text(encoding="utf-8")).body for line in _shown(one)]
            module = ".".join(("cloudspot", *parts))
            if lines:
                yield from ("", module.removesuffix(".__init__"), *(f"    {line}" for line in lines))


def _shown(node: ast.stmt, owner: str = "") -> Iterator[str]:
    """Yield the lines of a definition if it is public; those of a class are indented."""
    if isinstance(node, ast.ImportFrom):
        yield from (f"{one.name} of {node.module}" for one in node.names if one.asname == one.name)
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        if isinstance(target, ast.Name) and _is_public(target.id):
            text = ast.unparse(node)
            yield text if len(text) <= WIDTH else f"{text[:WIDTH]}..."
    elif isinstance(node, ast.ClassDef) and _is_public(node.name):
        bases = ", ".join(ast.unparse(one) for one in (*node.bases, *node.keywords))
        yield f"class {node.name}({bases})" if bases else f"class {node.name}"
        for one, after in zip(node.body, (*node.body[1:], None), strict=True):
            lines = [f"    {line}" for line in _shown(one, node.name)]
            yield from lines
            if lines and isinstance(one, ast.Assign | ast.AnnAssign):
                yield from (f"        # {line}" for line in _text_below(after))
    elif isinstance(node, ast.FunctionDef) and (_is_public(node.name) or (owner and node.name == "__init__")):
        marks = "".join(f"@{ast.unparse(one)} " for one in node.decorator_list)
        returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
        yield f"{marks}def {node.name}({ast.unparse(node.args)}){returns}"


def _text_below(node: ast.stmt | None) -> Iterator[str]:
    """Yield the lines of the text that stands below a field, and says what it holds."""
    text = node.value.value if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) else None
    if isinstance(text, str):
        yield from textwrap.wrap(" ".join(text.split()), WIDTH - 12, break_on_hyphens=False)


def _is_public(name: str) -> bool:
    return not name.startswith("_")


def time_limits() -> str:
    """Return how long each call of a plugin may take, as a table."""
    alike: dict[tuple[str, str, str], list[str]] = {}
    for interface, calls in CALLS.items():
        for name, rule in calls.items():
            limit = "no limit" if rule.seconds == float("inf") else in_words(rule.seconds)
            if rule.seconds_per_mib:
                limit += f", and {in_words(rule.seconds_per_mib)} for each MiB"
            unknown = "unknown: it is called again" if rule.is_unknown else ""
            alike.setdefault((interface, limit, unknown), []).append(f"`{name}`")
    rows = [
        f"| `{interface}` | {', '.join(names)} | {limit} | {unknown} |"
        for (interface, limit, unknown), names in alike.items()
    ]
    head = ("", "| interface | calls | may take | what a fault leaves behind |", "|---|---|---|---|")
    return "\n".join((*head, *rows, "", ""))


# --- the command line ---------------------------------------------------------------------------


def cli_regions() -> dict[str, str]:
    """Return the usage and the options of each command, and the list of commands."""
    regions = {" ".join(path): _usage(path, command) for path, command in commands()}
    rows = [f"| `{name}` | {text} |" for name, text in field_docs(UserConfig).items()]
    regions["the config file"] = "\n".join(("", "| field | meaning |", "|---|---|", *rows, "", ""))
    regions["commands"] = _commands("")
    return regions


def _commands(page: str) -> str:
    """Return a table of the commands, with links to their sections of docs/cli.md."""
    rows = [f"| [`{name}`]({page}#cloudspot-{name}) | {line} |" for name, line in SHORT_HELPS.items()]
    return "\n".join(("", "| command | what it does |", "|---|---|", *rows, "", ""))


def commands(
    group: click.Group = program, path: tuple[str, ...] = ("cloudspot",)
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield every command that can be run, with its path."""
    context = click.Context(group)
    # What plugins bring is not on our page.
    for name in SHORT_HELPS if group is program else group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            if command.invoke_without_command:
                yield (*path, name), command
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


def _usage(path: tuple[str, ...], command: click.Command) -> str:
    context = click.Context(command)
    # A listed command without a name of its own is the group's: `cloudspot providers`.
    arguments = [each for each in command.params if isinstance(each, click.Argument)]
    options = [each for each in command.params if isinstance(each, click.Option)]
    words = [argument.make_metavar(context) for argument in arguments]
    words += [
        f"[{_spelling(option, option.opts[-1], context)}]{'...' * option.multiple}" for option in options
    ]
    # What begins with "--" is another program's command line: nothing of ours comes after it.
    words.sort(key=lambda word: word.startswith("-- "))
    head = f"    {' '.join(path)}"
    # Not broken within one option's brackets.
    body = [word.replace(" ", "\0") for word in words]
    usage = textwrap.fill(
        " ".join((head, *body)), WIDTH, subsequent_indent=" " * (len(head) + 1), break_on_hyphens=False
    ).replace("\0", " ")
    rows = []
    for option in options:
        if option.help in _SHARED:
            continue
        names = ", ".join(f"`{_spelling(option, name, context)}`" for name in option.opts)
        rows.append(f"| {_cell(names)} | {_cell(_explain(option))} |")
    table = ("| option | |", "|---|---|", *rows, "") if rows else ()
    return "\n".join(("", usage, "", *table, ""))


def _spelling(option: click.Option, name: str, context: click.Context) -> str:
    return name if option.is_flag else f"{name} {option.make_metavar(context)}"


def _explain(option: click.Option) -> str:
    text = (option.help or "").removesuffix(".")
    if option.show_envvar and option.envvar:
        text += f"; or the variable `{option.envvar}`"
    if option.show_default and option.default is not None:
        # Click's help, too, shows the values of a repeatable option and not the tuple.
        shown = ", ".join(option.default) if isinstance(option.default, tuple) else option.default
        text += f"; default `{shown}`"
    return f"{text}."


def _cell(text: str) -> str:
    """Return the text for a cell of a table, of which a bar would end it, in backquotes too."""
    return text.replace("|", r"\|")


def in_words(seconds: float) -> str:
    """Return a duration as prose has it: ``20 minutes``."""
    for unit, length in (("days", 86400), ("minutes", 60)):
        if seconds >= 2 * length and seconds % length == 0:
            return f"{seconds / length:g} {unit}"
    return f"{seconds:g} seconds"


# --- the job file -------------------------------------------------------------------------------


def job_file_regions() -> dict[str, str]:
    """Return a table of fields for each table of the job file."""
    regions = {}
    top = [field for field in _fields(JobSpec) if not _is_table(field)]
    regions["the job"] = _field_table(
        JobSpec, "", tuple(field for field in top if field.name not in {"data", "providers"})
    )
    regions["data"] = _field_table(DataSpec, "data.NAME.", _fields(DataSpec))
    for field in _fields(JobSpec):
        if _is_table(field):
            inner = _struct(field.type)
            regions[field.encode_name] = _field_table(inner, f"{field.encode_name}.", _fields(inner))
    regions["providers"] = _field_table(JobSpec, "", [field for field in top if field.name == "providers"])
    regions.update(_provider_regions("providers.local", LocalOptions))
    regions["variables"] = _variables()
    return regions


def _variables() -> str:
    lines = ["| variable | set | what it holds |", "|---|---|---|"]
    for names, (when, what) in PROMISED.items():
        listed = " ".join(f"`{name}`" for name in names.split(", "))
        lines.append(f"| {listed} | {when} | {what} |")
    return "\n".join(lines) + "\n"


def _provider_regions(path: str, type_: type[msgspec.Struct]) -> dict[str, str]:
    """Return a plugin's own table of options, and those that lie within it."""
    regions = {path: _field_table(type_, f"{path}.", _fields(type_))}
    for field in _fields(type_):
        inner = _innermost(field.type)
        if isinstance(inner, inspect.StructType):
            regions.update(_provider_regions(f"{path}.{field.encode_name}", inner.cls))
    return regions


def _fields(type_: type[msgspec.Struct]) -> tuple[inspect.Field, ...]:
    info = inspect.type_info(type_)
    assert isinstance(info, inspect.StructType)
    return info.fields


def _struct(node: inspect.Type) -> type[msgspec.Struct]:
    assert isinstance(node, inspect.StructType)
    return node.cls


def _is_table(field: inspect.Field) -> bool:
    return isinstance(field.type, inspect.StructType) and field.type.cls is not Nodes


def _field_table(type_: type[msgspec.Struct], prefix: str, fields: tuple[inspect.Field, ...]) -> str:
    docs = field_docs(type_)
    rows = []
    for field in fields:
        cells = (_kind(field.type, f"{prefix}{field.encode_name}"), _default(field), docs[field.encode_name])
        rows.append(f"| `{prefix}{field.encode_name}` | " + " | ".join(map(_cell, cells)) + " |")
    return "\n".join(("", "| field | type | default | meaning |", "|---|---|---|---|", *rows, "", ""))


def _bare(node: inspect.Type) -> inspect.Type:
    """Return the type without ``| None`` and metadata; of a string or a list of them, the list."""
    if isinstance(node, inspect.Metadata):
        return _bare(node.type)
    if isinstance(node, inspect.UnionType):
        members = [each for each in node.types if not isinstance(each, inspect.NoneType)]
        lists = [each for each in members if isinstance(each, inspect.VarTupleType)]
        (member,) = lists or members
        return _bare(member)
    return node


def _innermost(node: inspect.Type) -> inspect.Type:
    bare = _bare(node)
    return _innermost(bare.item_type) if isinstance(bare, inspect.ListType | inspect.VarTupleType) else bare


def _extra(node: inspect.Type) -> dict[str, object]:
    if isinstance(node, inspect.Metadata):
        return {**_extra(node.type), **(node.extra or {})}
    if isinstance(node, inspect.UnionType):
        return {name: value for member in node.types for name, value in _extra(member).items()}
    return {}


def _kind(node: inspect.Type, path: str) -> str:
    """Return what may be written, in words."""
    special = {"limits.max_cost": "money", "nodes": "integer, or `{ min, max, hold, drive }`", "store": "URL"}
    special["checkpoint.directory"] = "string, or list of strings"
    if path in special:
        return special[path]
    extra, bare = _extra(node), _bare(node)
    word = f' or `"{extra["word"]}"`' if "word" in extra else ""
    if "quantity" in extra:
        return f"{extra['quantity']}{word}"
    if isinstance(bare, inspect.LiteralType):
        return ", ".join(f'`"{value}"`' for value in bare.values)
    if isinstance(bare, inspect.VarTupleType):
        inner = "tables" if isinstance(_bare(bare.item_type), inspect.StructType) else "strings"
        return f"list of {inner}"
    if isinstance(bare, inspect.DictType):
        kinds = {inspect.StrType: "strings", inspect.FloatType: "numbers", inspect.IntType: "integers"}
        if isinstance(bare.value_type, inspect.AnyType):
            return "table"
        return f"table of {kinds.get(type(_bare(bare.value_type)), 'tables')}"
    names = {
        inspect.StrType: "string",
        inspect.IntType: "integer",
        inspect.FloatType: "number",
        inspect.BoolType: "`true` or `false`",
        inspect.StructType: "table",
    }
    return names[type(bare)]


def _default(field: inspect.Field) -> str:
    if field.required:
        return "required"
    if field.default is None:
        word = _extra(field.type).get("word")
        return f'`"{word}"`' if word else "none"
    if field.default_factory is not msgspec.NODEFAULT:
        return "`{}`"
    if isinstance(field.default, Nodes):
        return f"`{field.default.max}`"
    if _extra(field.type).get("quantity") == "duration":
        return f'`"{_duration(float(field.default))}"`'
    return f"`{json.dumps(field.default)}`"


def _duration(seconds: float) -> str:
    for unit, length in (("h", 3600), ("m", 60)):
        if seconds and seconds % length == 0:
            return f"{seconds / length:g}{unit}"
    return f"{seconds:g}s"


if __name__ == "__main__":
    sys.exit(main())
