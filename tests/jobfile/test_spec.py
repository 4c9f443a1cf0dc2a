"""The job file: what it means, and how it tells what is wrong."""

from __future__ import annotations

import json
import re
from importlib import resources
from pathlib import Path

import jsonschema
import msgspec
import pytest

from cloudspot.errors import SpecError
from cloudspot.jobfile import spec as spec_module
from cloudspot.jobfile.data import DataSpec
from cloudspot.jobfile.quantities import Duration, Size
from cloudspot.jobfile.spec import (
    JobSpec,
    Nodes,
    PositiveCount,
    check_files,
    decode_options,
    load_job,
    spec_from_json,
    spec_to_json,
)
from cloudspot.jobfile.toml import read_toml
from cloudspot.jobstore.layout import keys
from cloudspot.model import Resources

SMALL = """
name = "digits"
[run]
entrypoint = "train.py"
"""

FULL = """
name = "digits"
store = "s3://bucket/jobs"
labels = { team = "vision" }
nodes = { min = 2, max = 4, hold = "10m" }
procs_per_node = 8
[resources]
accelerator = "A100"
accelerator_count = 8
cpus = 96
memory = "1.5TiB"
disk = "500GB"
[run]
workdir = ".."
setup = "pip install -r requirements.txt"
entrypoint = "src/train.py"
launcher = "none"
args = ["--epochs", "3"]
env = { OMP_NUM_THREADS = "4" }
python = "python3.11"
secrets = ["WANDB_API_KEY"]
[spot]
policy = "deadline"
max_wait = "1h30m"
deadline = "2d"
length = "30h"
[checkpoint]
interval = "10m"
keep = 5
directory = "output/checkpoint-*"
complete_file = "trainer_state.json"
on_notice = "SIGUSR1"
[logs]
flush = "500ms"
[limits]
max_cost = "12.50 USD"
max_runtime = 3600
max_restarts = 0
stuck_after = "off"
idle_after = "45m"
on_idle = "stop"
[providers.local]
notice = "5s"
[providers.other]
region = "here"
"""


BEYOND_THE_SCHEMA = re.compile(
    r"line \d+: |nodes\.min must be <= |nodes\.max \* procs_per_node|contradicts max_cost|is in run\.secrets too"
    r"|looks like a credential|finite number|names no program|needs spot\.deadline|has no effect without spot\.policy"
    r"|has no effect without an entrypoint that torchrun starts"
    r"|has \d+ bytes, but|setup have \d+ bytes"
)
"""What no schema says of a job file: two fields at once, what looks like a secret, what is no TOML at all."""


def schema_accepts(path):
    """Say whether the shipped schema takes the file's values."""
    schema = json.loads(resources.files("cloudspot").joinpath("job.schema.json").read_text())
    return jsonschema.Draft7Validator(schema).is_valid(read_toml(path))


@pytest.fixture
def load(tmp_path):
    """Return a function that loads a job file of the given text, and gives errors without the directory.

    Of every text here the JSON Schema must think as the loader does.
    """

    def load_text(text=SMALL, *overrides):
        path = tmp_path / "job.toml"
        path.write_text(text)
        try:
            spec = load_job(path, overrides=overrides)
        except SpecError as error:
            is_known = overrides or BEYOND_THE_SCHEMA.search(str(error))
            if not is_known and schema_accepts(path):
                pytest.fail(f"the schema takes what is refused: {error}")
            raise
        assert overrides or schema_accepts(path), "the schema refuses what is taken"
        return spec

    return load_text


@pytest.fixture
def fault(load, tmp_path):
    """Return a function that gives the message with which a job file is refused."""

    def message(text=SMALL, *overrides):
        with pytest.raises(SpecError) as error:
            load(text, *overrides)
        return str(error.value).replace(f"{tmp_path}/", "")

    return message


def test_a_job_that_an_earlier_version_has_submitted_preloads_nothing():
    value = {"name": "digits", "run": {"entrypoint": "train.py", "fork_server": True}}
    assert spec_from_json(value).run.preload == ()


def test_a_small_job_file_has_the_documented_defaults(load):
    spec = load()
    assert spec.name == "digits"
    assert spec.store is None
    assert spec.nodes == Nodes(min=1, max=1)
    assert spec.procs_per_node == 1
    assert spec.resources.to_model() == Resources()
    assert (spec.run.workdir, spec.run.entrypoint, spec.run.args) == (".", "train.py", ())
    assert spec.spot.policy == "spot-then-on-demand"
    assert (spec.spot.max_wait, spec.spot.deadline) == (None, None)
    assert (spec.checkpoint.interval, spec.checkpoint.keep, spec.checkpoint.compression) == (None, 3, "none")
    assert spec.logs.flush_seconds == 2.0
    assert (spec.limits.max_cost, spec.limits.max_restarts, spec.limits.stuck_after) == (None, 3, 1800.0)
    assert (spec.limits.idle_after, spec.limits.on_idle) == (None, "warn")
    assert spec.providers == {}


def test_every_field_can_be_written(load):
    spec = load(FULL)
    assert spec.nodes == Nodes(min=2, max=4, hold=600.0)
    assert spec.resources.to_model() == Resources(
        accelerator="A100",
        accelerator_count=8,
        cpus=96,
        memory_bytes=3 * 2**39,
        disk_bytes=500 * 10**9,
    )
    assert spec.run.args == ("--epochs", "3")
    assert spec.run.env == {"OMP_NUM_THREADS": "4"}
    assert spec.run.secrets == ("WANDB_API_KEY",)
    assert (spec.spot.max_wait, spec.spot.deadline, spec.spot.length) == (5400.0, 172800.0, 108000.0)
    assert (spec.checkpoint.interval, spec.checkpoint.directory) == (600.0, "output/checkpoint-*")
    assert spec.logs.flush_seconds == 0.5
    assert (spec.limits.max_cost, spec.limits.currency) == (12.5, "USD")
    assert (spec.limits.max_runtime, spec.limits.max_restarts, spec.limits.stuck_after) == (3600.0, 0, None)
    assert (spec.limits.idle_after, spec.limits.on_idle) == (2700.0, "stop")
    assert spec.providers == {"local": {"notice": "5s"}, "other": {"region": "here"}}


@pytest.mark.parametrize("text", [SMALL, FULL])
def test_a_spec_survives_json_as_numbers(load, text):
    spec = load(text)
    value = json.loads(json.dumps(spec_to_json(spec)))
    assert spec_from_json(value) == spec
    assert value["logs"] == {"flush": spec.logs.flush_seconds}
    assert value["resources"]["memory"] == spec.resources.memory


def test_a_stored_spec_of_a_newer_version_is_named_as_such(load):
    value = spec_to_json(load())
    value["colour"] = "blue"
    with pytest.raises(SpecError, match=r"stored job: colour: unknown field; .*another version of cloudspot"):
        spec_from_json(value)


def test_one_accelerator_is_meant_where_no_count_is_given(load):
    assert load(SMALL + '[resources]\naccelerator = "T4"').resources.to_model().accelerator_count == 1


# --- what is wrong, and where -------------------------------------------------------------------


def with_run(line):
    return SMALL + line


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            SMALL.replace("entrypoint", "entrypiont"),
            "job.toml: run.entrypiont: unknown field; did you mean run.entrypoint?",
        ),
        ('entrypoint = "x"\n' + SMALL, "job.toml: entrypoint: unknown field; did you mean run.entrypoint?"),
        ("max_cots = 3\n" + SMALL, "job.toml: max_cots: unknown field; did you mean limits.max_cost?"),
        (SMALL + "[provider.local]", "job.toml: provider: unknown field; did you mean providers?"),
        (
            SMALL + "[logs]\nzzz = 1",
            "job.toml: logs.zzz: unknown field; the fields here are flush",
        ),
        (SMALL + '"odd key" = 1', 'job.toml: run."odd key": unknown field; the fields here are '),
        ("[run]\nentrypoint = 'train.py'", "job.toml: name: missing; it has no default"),
        (
            "name = 'a'\n[run]",
            "job.toml: run: needs entrypoint, a script, or command, a list; neither is there",
        ),
        (
            SMALL + "command = ['swift', 'sft']",
            "job.toml: run: needs entrypoint, a script, or command, a list; both are there",
        ),
        (
            "name = 'a'\n[run]\ncommand = 'swift sft'",
            'job.toml: run.command: expected a list, got "swift sft"',
        ),
        ("name = 'a'\n[run]\ncommand = []", "job.toml: run.command: names no program; expected a list"),
        (
            SMALL + "preload = ['transformers', 'no module']",
            'job.toml: run.preload[1]: "no module" is not the name of a module, such as "transformers"',
        ),
        (
            "name = 'a'\n[run]\ncommand = ['swift']\npreload = ['transformers']",
            "job.toml: run.preload: has no effect without an entrypoint that torchrun starts",
        ),
        (
            SMALL + "preload = ['transformers']\nlauncher = 'none'",
            "job.toml: run.preload: has no effect without an entrypoint that torchrun starts",
        ),
        ("name = 'a'\n[run]\ncommand = ['']", "job.toml: run.command: names no program; expected a list"),
        (
            SMALL + "[checkpoint]\ndirectory = 'out'\non_notice = 'SIGKILL'",
            'job.toml: checkpoint.on_notice: expected "SIGTERM" or "SIGUSR1" or the path of a file',
        ),
        (
            SMALL + "[checkpoint]\ndirectory = 'out'\non_notice = '/tmp/stop'",
            'job.toml: checkpoint.on_notice: "/tmp/stop" must be a path inside the working directory',
        ),
        (
            SMALL + "[checkpoint]\non_notice = 'SIGTERM'",
            "job.toml: checkpoint.on_notice: has no effect without checkpoint.directory",
        ),
        (
            SMALL + "[checkpoint]\nincomplete_file = 'saving'",
            "job.toml: checkpoint.incomplete_file: has no effect without checkpoint.directory",
        ),
        (
            SMALL + "[checkpoint]\ndirectory = 'out'\ncomplete_file = 'a'\nincomplete_file = 'b'",
            "job.toml: checkpoint: has complete_file and incomplete_file; give at most one",
        ),
        (SMALL + "launcher = 'mpi'", 'job.toml: run.launcher: expected one of "none", "torchrun"'),
        ("name = 'a'", "job.toml: run: missing; it has no default"),
        ("run = 3\nname = 'a'", "job.toml: run: expected a table, got 3"),
        ("nodes = 'two'\n" + SMALL, "job.toml: nodes: expected an integer or a table { min = 1, max = 2 }"),
        ("nodes = 0\n" + SMALL, "job.toml: nodes: expected an integer >= 1, got 0"),
        ("nodes = true\n" + SMALL, "job.toml: nodes: expected an integer or a table"),
        ("nodes = { min = 1 }\n" + SMALL, "job.toml: nodes.max: missing; it has no default"),
        (
            "nodes = { min = 4, max = 2 }\n" + SMALL,
            "job.toml: nodes.min must be <= nodes.max: got 4 > 2",
        ),
        (
            "nodes = 5000\nprocs_per_node = 2\n" + SMALL,
            "job.toml: nodes.max * procs_per_node must be <= 9999: got 5000 * 2",
        ),
        ("procs_per_node = 1.5\n" + SMALL, "job.toml: procs_per_node: expected an integer, got 1.5"),
        (SMALL + 'args = ["--epochs", 3]', "job.toml: run.args[1]: expected a string, got 3"),
        (SMALL + "args = 3", "job.toml: run.args: expected a list, got 3"),
        (SMALL + "secrets = [[]]", "job.toml: run.secrets[0]: expected a string, got a list"),
        (
            SMALL + "[spot]\npolicy = 'The Cheap'",
            (
                'job.toml: spot.policy: expected one of "deadline", "on-demand", "spot", "spot-then-on-demand", or '
                '''the name of a plugin's; got "The Cheap"'''
            ),
        ),
        (
            SMALL + "[spot]\nmax_wait = '10 minutes'",
            'job.toml: spot.max_wait: expected a duration such as "90s", "10m" or "1h30m", got "10 minutes"',
        ),
        (
            SMALL + "[spot]\nmax_wait = 2026-01-01",
            'job.toml: spot.max_wait: expected a duration such as "10m" or a number of seconds, got 2026-01-01',
        ),
        (SMALL + "[spot]\nmax_wait = -1", "job.toml: spot.max_wait: expected a number >= 0, got -1"),
        (SMALL + "[spot]\nmax_wait = inf", "job.toml: spot.max_wait: expected a finite number, got inf"),
        (SMALL + "[checkpoint]\ninterval = 0", "job.toml: checkpoint.interval: expected a number > 0, got 0"),
        (
            SMALL + "[checkpoint]\ninterval = 'never'",
            'job.toml: checkpoint.interval: expected a duration such as "90s", "10m" or "1h30m", got "never"; or write "auto"',
        ),
        (
            SMALL + '[checkpoint]\ncompression = "gzip"',
            'job.toml: checkpoint.compression: expected one of "none", "zstd"; got "gzip"',
        ),
        (SMALL + "[checkpoint]\nkeep = 0", "job.toml: checkpoint.keep: expected an integer >= 1, got 0"),
        (
            SMALL + "[checkpoint]\ncomplete_file = 'done'",
            "job.toml: checkpoint.complete_file: has no effect without checkpoint.directory",
        ),
        (
            SMALL + "[checkpoint]\ndirectory = '/tmp/x-*'",
            'job.toml: checkpoint.directory: "/tmp/x-*" must be a path inside the working directory',
        ),
        (
            SMALL + "[resources]\nmemory = '50G'",
            'job.toml: resources.memory: ambiguous unit in "50G": write 50GiB (powers of 1024) or 50GB',
        ),
        (SMALL + "[resources]\nmemory = 1.5", "job.toml: resources.memory: expected an integer, got 1.5"),
        (
            SMALL + "[limits]\nmax_cost = '$5'",
            'job.toml: limits.max_cost: expected an amount such as 12.50 or "12.50 USD", got "$5"',
        ),
        (
            SMALL + "[limits]\nmax_cost = '5 USD'\ncurrency = 'EUR'",
            'job.toml: limits.currency: "EUR" contradicts max_cost = "5 USD"',
        ),
        (
            SMALL + "[limits]\non_idle = 'stop'",
            "job.toml: limits.on_idle: has no effect without limits.idle_after",
        ),
        (
            SMALL + "[resources]\naccelerator = 'A100,H100'",
            'job.toml: resources.accelerator: "A100,H100" names several accelerators; name one',
        ),
        (SMALL + 'args = ["\\u0000"]', "job.toml: run.args[0]: must not contain a zero byte"),
        (SMALL + 'env = { A = "\\u0000" }', "job.toml: run.env.A: must not contain a zero byte"),
        (
            SMALL + "[data.a]\nurl = 'file:///data/'\npath = './.'",
            'job.toml: data.a.path: "./." must be a path below the working directory',
        ),
        (SMALL + "[limits]\nmax_cost = 0", "job.toml: limits.max_cost: expected a number > 0, got 0"),
        (SMALL + "[providers]\nlocal = 3", "job.toml: providers.local: expected a table, got 3"),
        (
            SMALL.replace("digits", "My Job!"),
            'job.toml: name: "My Job!" must be at most 48 lower-case letters',
        ),
        (
            SMALL.replace("train.py", "../train.py"),
            'job.toml: run.entrypoint: "../train.py" must be a path inside',
        ),
        (
            SMALL.replace("train.py", "/train.py"),
            'job.toml: run.entrypoint: "/train.py" must be a path inside',
        ),
        (
            "store = '/data'\n" + SMALL,
            'job.toml: store: "/data" is not a URL; expected one such as file:///',
        ),
    ],
)
def test_an_error_names_the_path_what_was_found_and_the_right_name(fault, text, message):
    assert fault(text).startswith(message)


def test_a_wrong_name_comes_with_a_right_one(fault):
    assert fault(SMALL.replace("digits", "My Job!")).endswith('; did you mean "my-job"?')


@pytest.mark.parametrize(
    ("text", "line"),
    [(SMALL + "x y", "line 5: "), (SMALL + "\n[a", "line 6: "), ("name = 'a'\nname = 'b'\n\n", "line 2: ")],
)
def test_a_syntax_error_names_its_line(fault, text, line):
    assert fault(text).startswith(f"job.toml: {line}")


def test_a_missing_job_file_is_named(tmp_path):
    with pytest.raises(SpecError, match=r"nowhere\.toml: no such file"):
        load_job(tmp_path / "nowhere.toml")


def test_a_job_file_that_is_no_text_is_refused(tmp_path):
    (tmp_path / "job.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(SpecError, match=r"job\.toml: line 1 is not UTF-8 text"):
        load_job(tmp_path / "job.toml")


@pytest.mark.parametrize("name", ["a", "a" * 48, "a-1"])
def test_a_name_and_a_suffix_make_a_job_id(load, name):
    assert keys.JOB_ID.fullmatch(f"{load(SMALL.replace('digits', name)).name}-20261120-abcd")


@pytest.mark.parametrize("name", ["", "a" * 49, "-a", "a-", "A", "a_b", "a.b", "ä"])
def test_a_name_that_makes_no_job_id_is_refused(fault, name):
    assert fault(SMALL.replace("digits", name)).startswith("job.toml: name: ")


@pytest.mark.parametrize(
    ("name", "value"), [("team", "vision"), ("cost-centre", "4711/a b"), ("A.b_1", "x@y")]
)
def test_labels_say_what_a_job_is_for(load, name, value):
    assert load(f'labels = {{ "{name}" = "{value}" }}\n{SMALL}').labels == {name: value}
    assert load(SMALL, f"labels.{name.partition('.')[0]}={value}").labels == {name.partition(".")[0]: value}


@pytest.mark.parametrize("name", ["", "a b", "-a", "a=b", "x" * 64, "\\u001b"])
def test_a_label_of_another_name_is_refused(fault, name):
    assert fault(f'labels = {{ "{name}" = "x" }}\n{SMALL}').startswith("job.toml: labels: ")


@pytest.mark.parametrize("value", ["", " a", "a ", "-", "x" * 64, "a\\nb", "=1+1", "\\u001b[2J"])
def test_a_label_of_another_value_is_refused(fault, value):
    message = fault(f'labels = {{ team = "{value}" }}\n{SMALL}')
    assert message.startswith("job.toml: labels.team: ")


def test_at_most_so_many_labels_are_possible(load, fault):
    def text(count):
        return "[labels]\n" + "".join(f'l{number} = "x"\n' for number in range(count))

    assert len(load(SMALL + text(16)).labels) == 16
    assert fault(SMALL + text(17)) == "job.toml: labels: at most 16 are possible, got 17"


# --- credentials --------------------------------------------------------------------------------


@pytest.mark.parametrize("store", ["s3://key:hunter2@bucket/x", "https://hunter2@host/x"])
def test_credentials_in_the_store_url_are_refused_and_not_shown(fault, store):
    message = fault(f'store = "{store}"\n{SMALL}')
    assert message == "job.toml: store: must not contain credentials; each machine that uses it finds its own"


def test_a_secret_is_not_also_a_plain_variable(fault):
    message = fault(SMALL + 'secrets = ["TOKEN"]\nenv = { TOKEN = "hunter2" }')
    assert message.startswith("job.toml: run.env.TOKEN: is in run.secrets too")
    assert "hunter2" not in message


@pytest.mark.parametrize("name", ["HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD"])
def test_a_variable_that_looks_like_a_credential_belongs_into_secrets(fault, name):
    message = fault(f'{SMALL}env = {{ {name} = "hunter2" }}')
    assert message.startswith(f"job.toml: run.env.{name}: looks like a credential")
    assert f'secrets = ["{name}"]' in message
    assert "hunter2" not in message


@pytest.mark.parametrize("name", ["TOKENIZERS_PARALLELISM", "PAD_TOKEN", "KEYS", "SECRETARY"])
def test_an_innocent_variable_passes(load, name):
    assert load(f'{SMALL}env = {{ {name} = "x" }}').run.env == {name: "x"}


def test_a_wrong_value_in_the_environment_is_not_shown(fault):
    assert (
        fault(SMALL + "env = { PIN = 424242 }") == "job.toml: run.env.PIN: expected a string, got an integer"
    )


@pytest.mark.parametrize("name", ["A B", "1A", "", "A=B", "CLOUDSPOT_JOB"])
def test_names_that_are_no_variables_of_the_user_are_refused(fault, name):
    assert fault(f'{SMALL}secrets = ["{name}"]').startswith("job.toml: run.secrets[0]: ")
    assert fault(f'{SMALL}env = {{ "{name}" = "x" }}').startswith("job.toml: run.env: ")


def test_a_secret_is_named_once(fault):
    assert fault(SMALL + 'secrets = ["A", "A"]') == "job.toml: run.secrets: names A twice"


# --- overrides ----------------------------------------------------------------------------------


def test_overrides_change_and_add_fields(load):
    spec = load(
        SMALL,
        "nodes=2",
        "spot.max_wait=10m",
        "run.args=['a', 'b']",
        "limits.max_cost=12.50 EUR",
        "checkpoint.interval=auto",
        "providers.local.notice=5s",
        "providers.local.reclaims=[{after_steps = 3}]",
        'name="other"',
        "run.setup=a = b",
    )
    assert spec.nodes == Nodes(min=2, max=2)
    assert spec.spot.max_wait == 600.0
    assert spec.run.args == ("a", "b")
    assert (spec.limits.max_cost, spec.limits.currency) == (12.5, "EUR")
    assert spec.providers == {"local": {"notice": "5s", "reclaims": [{"after_steps": 3}]}}
    assert spec.name == "other"
    assert spec.run.setup == "a = b"


@pytest.mark.parametrize("text", ["3", "true", "1.5", "2026-11-20", "[1]", 'a"b', "a\nb = 1", ""])
def test_a_field_that_takes_strings_takes_an_override_as_it_is(load, text):
    assert load(SMALL, f"run.env.X={text}").run.env == {"X": text}


def test_the_later_override_wins(load):
    assert load(SMALL, "nodes=2", "nodes=3").nodes == Nodes(min=3, max=3)


def test_an_error_in_an_override_does_not_blame_the_file(fault):
    assert (
        fault(SMALL, "spot.max_wiat=3") == "--set: spot.max_wiat: unknown field; did you mean spot.max_wait?"
    )
    assert fault(SMALL.replace("digits", "D"), "nodes=2").startswith("job.toml: name: ")


@pytest.mark.parametrize("text", ["nodes", "=3", "a b=3", ".a=3", "a..b=3", ""])
def test_an_override_without_field_and_value_is_refused(fault, text):
    assert fault(SMALL, text) == "--set: expected FIELD=VALUE, as in --set limits.max_cost=20"


def test_an_override_inside_a_value_is_refused(fault):
    assert (
        fault("nodes = 1\n" + SMALL, "nodes.min=1") == "--set nodes.min: nodes is not a table in the job file"
    )


# --- files --------------------------------------------------------------------------------------


def test_the_working_directory_is_relative_to_the_job_file(load, tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").touch()
    assert check_files(load(SMALL + 'workdir = "src"'), tmp_path) == tmp_path.resolve() / "src"


def test_a_missing_working_directory_or_entrypoint_is_named(load, tmp_path):
    with pytest.raises(
        SpecError, match=r'^run\.entrypoint: "train\.py" is not a file in the working directory /'
    ):
        check_files(load(), tmp_path)
    with pytest.raises(SpecError, match=r'^run\.workdir: "nowhere" is not a directory \(/'):
        check_files(load(SMALL + 'workdir = "nowhere"'), tmp_path)


# --- the plugins' tables ------------------------------------------------------------------------


class Disk(msgspec.Struct, frozen=True):
    size: Size = 0


class Options(msgspec.Struct, frozen=True, kw_only=True):
    region: str
    notice: Duration = 10.0
    disks: tuple[Disk, ...] = ()
    api_key: str | None = None
    seats: dict[str, PositiveCount] = {}
    port: int | str = 1

    def __post_init__(self):
        if self.region in ("mars", "moon"):
            raise ValueError(f"region must be on earth - at `$.{self.region}`")


def options(load, table):
    return decode_options(load(f"{SMALL}[providers.here]\n{table}"), "here", Options)


def test_a_plugin_decodes_its_own_table_with_quantities(load):
    decoded = options(load, 'region = "a"\nnotice = "1m"\ndisks = [{ size = "1GiB" }]')
    assert decoded == Options(region="a", notice=60.0, disks=(Disk(size=2**30),))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("", "providers.here.region: missing; it has no default"),
        ("regoin = 'a'", "providers.here.regoin: unknown field; did you mean providers.here.region?"),
        (
            "size = 1",
            "providers.here.size: unknown field; the fields here are region, notice, disks, api_key, seats, port",
        ),
        (
            "region = 'a'\ndisks = [{ szie = 1 }]",
            "providers.here.disks[0].szie: unknown field; did you mean providers.here.disks[0].size?",
        ),
        (
            "region = 'a'\ndisks = [{}, { size = 'x' }]",
            'providers.here.disks[1].size: expected a size such as "50GiB" or "500MB", got "x"',
        ),
        ("region = 3", "providers.here.region: expected a string, got 3"),
        ("region = 'mars'", "providers.here: region must be on earth - at `$.mars`"),
        ("region = 'a'\nseats = { a = 1, b = 0 }", "providers.here.seats.b: expected an integer >= 1, got 0"),
        ("region = 'a'\nport = 1.5", "providers.here.port: expected an integer or a string, got 1.5"),
        ("region = 'a'\napi_key = 4242", "providers.here.api_key: expected a string, got an integer"),
    ],
)
def test_errors_in_a_plugins_table_are_as_good(load, table, message):
    with pytest.raises(SpecError) as error:
        options(load, table)
    assert str(error.value) == message


def test_an_absent_table_is_an_empty_one(load):
    with pytest.raises(SpecError, match=r"^providers\.here\.region: missing"):
        decode_options(load(), "here", Options)


# --- the documentation --------------------------------------------------------------------------


def field_paths(type_, prefix=""):
    for field in msgspec.structs.fields(type_):
        path = f"{prefix}{field.encode_name}"
        if (
            isinstance(field.type, type)
            and issubclass(field.type, msgspec.Struct)
            and field.type is not Nodes
        ):
            yield from field_paths(field.type, f"{path}.")
        yield path


def test_the_reference_names_every_field():
    reference = (Path(__file__).parents[2] / "docs" / "job-file.md").read_text()
    documented = set(re.findall(r"^\| `([a-z_.]+)` \|", reference, re.MULTILINE))
    tables = {"resources", "run", "spot", "checkpoint", "logs", "limits", "notify"}
    documented = {path for path in documented if not path.startswith("providers.")}
    assert documented | tables == set(field_paths(JobSpec)) - {"data"} | {"providers"}
    assert {f"| `data.NAME.{name}` |" for name in DataSpec.__struct_fields__} <= {
        found[0] for found in re.finditer(r"^\| `data.NAME.\w+` \|", reference, re.MULTILINE)
    }


def test_the_examples_in_the_reference_are_valid_job_files(load):
    reference = (Path(__file__).parents[2] / "docs" / "job-file.md").read_text()
    blocks = re.findall(r"```toml\n(.*?)```", reference, re.DOTALL)
    assert blocks
    for block in blocks:
        assert load(block).name


def test_every_type_of_the_job_file_refuses_unknown_fields():
    structs = [
        value
        for value in vars(spec_module).values()
        if isinstance(value, type) and issubclass(value, msgspec.Struct)
    ]
    ours = [struct for struct in structs if struct.__module__ == spec_module.__name__]
    assert len(ours) == 8
    assert all(struct.__struct_config__.forbid_unknown_fields for struct in ours)


# --- sizes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ('env = {{ GRID = "{0}" }}', "run.env.GRID"),
        ('args = ["a", "{0}"]', "run.args[1]"),
        ('setup = "{0}"', "run.setup"),
    ],
)
def test_what_linux_cannot_give_a_program_is_refused(load, fault, text, field):
    assert load(SMALL + text.format("x" * (126 << 10)))
    message = fault(SMALL + text.format("é" * (64 << 10)))
    assert message.startswith(f"job.toml: {field}: has 1310")
    assert message.endswith("put them into a file in run.workdir")


def test_a_dollar_sign_counts_twice_where_torchrun_reads_it(load, fault):
    text = SMALL + f'args = ["{"$" * 70_000}"]\n'
    assert fault(text).startswith("job.toml: run.args[0]: has 140000 bytes")
    assert load(text + 'launcher = "none"')


def test_all_variables_and_words_together_have_a_limit_too(fault):
    words = ", ".join(f'"{"$" * 60_000}"' for _ in range(9))
    assert fault(f"{SMALL}args = [{words}]").startswith(
        "job.toml: run: env, args, command and setup have 1080"
    )


def test_a_stored_job_of_any_size_can_still_be_read(load):
    stored = spec_to_json(load(SMALL))
    stored["run"]["env"] = {"GRID": "x" * 200_000}
    assert len(spec_from_json(stored).run.env["GRID"]) == 200_000


# --- no TOML ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("max_cost = 40 USD", '; text needs quotes: max_cost = "40 USD"'),
        ("max_runtime = 1h30m # soon", '; text needs quotes: max_runtime = "1h30m"'),
        ("entrypoint = train.py", '; text needs quotes: entrypoint = "train.py"'),
        ("api_key = hunter2", "; text needs quotes"),
        ('a = "x', ""),
        ("just words", ""),
    ],
)
def test_a_value_without_quotes_is_shown_with_them(fault, line, hint):
    message = fault(f"{SMALL}[limits]\n{line}\n")
    assert message.startswith("job.toml: line 6: ")
    assert "".join(message.partition("; text")[1:]) == hint


def test_a_script_in_place_of_a_job_file_is_told_how_to_get_one(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import torch\n")
    with pytest.raises(SpecError) as error:
        load_job(script)
    assert str(error.value) == (
        f"{script} is a Python script, not a job file; to write a job file, run: cloudspot init --entrypoint {script}"
    )
    (tmp_path / "job.yaml").write_text("name: digits\n")
    with pytest.raises(
        SpecError, match=r"job\.yaml: line 1: .*; a job file is TOML, and cloudspot init writes one$"
    ):
        load_job(tmp_path / "job.yaml")
