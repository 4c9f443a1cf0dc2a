"""``cloudspot init``: a job file that fits the script, passes the plan, and replaces nothing."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

import jsonschema
import pytest
from click.testing import CliRunner

from cloudspot.cli.commands.init import job_file_text
from cloudspot.cli.main import program
from cloudspot.jobfile.spec import load_job
from cloudspot.jobfile.toml import read_toml

SESSION = "import cloudspot.train as spot\n"


def init(*arguments, status=0):
    result = CliRunner().invoke(program, ["init", *map(str, arguments)])
    assert result.exit_code == status, result.output
    return result


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A directory of one's own, that is the current one."""
    path = tmp_path / "My Project_2"
    path.mkdir()
    monkeypatch.chdir(path)
    return path


def test_an_empty_directory_gets_a_job_file_and_a_script_that_pass_the_plan(jobs, tmp_path):
    directory = tmp_path / "new" / "try"
    lines = init(directory).stdout.splitlines()
    assert lines == [
        f"wrote {directory}/train.py, a small working training script",
        f"wrote {directory}/job.toml for train.py",
        f"see what it would launch: cloudspot plan {directory}/job.toml; start it: cloudspot run {directory}/job.toml",
    ]
    plan = jobs.run_json("plan", str(directory / "job.toml"))
    assert plan["id"].startswith("try-")
    compile((directory / "train.py").read_text(), "train.py", "exec")


def test_a_script_that_is_there_is_named_and_left_as_it_is(project):
    (project / "train.py").write_text(SESSION)
    (project / "other.py").write_text("import torch\n")
    lines = init().stdout.splitlines()
    assert lines[0] == "wrote job.toml for train.py"
    assert lines[1] == "see what it would launch: cloudspot plan; start it: cloudspot run"
    assert (project / "train.py").read_text() == SESSION
    spec = load_job(project / "job.toml")
    assert (spec.name, spec.run.entrypoint) == ("my-project-2", "train.py")


def test_the_only_script_that_mentions_torch_is_found(project):
    (project / "fit.py").write_text("import torch\n" + SESSION)
    (project / "plot.py").write_text("import matplotlib\n")
    assert "wrote job.toml for fit.py" in init().stdout


def test_which_of_several_scripts_is_asked(project):
    for name in ("a.py", "b.py"):
        (project / name).write_text("import torch\n")
    assert init(status=2).stderr == (
        f"error: {project}: a.py, b.py could each be the training script; name it with --entrypoint\n"
    )
    assert not (project / "job.toml").exists()
    init("--entrypoint", "b.py")
    assert load_job(project / "job.toml").run.entrypoint == "b.py"


def test_a_script_below_the_top_is_found_and_no_other_is_written(project):
    """A repository with src/train.py got a toy script in its root."""
    for name in ("src/train.py", "src/net.py", ".hidden/train.py", "env/lib/train.py"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("import torch\n")
    (project / "env/pyvenv.cfg").touch()
    (project / "setup.py").write_text("import setuptools\n")
    assert init().stdout.splitlines()[0] == "wrote job.toml for src/train.py"
    assert load_job(project / "job.toml").run.entrypoint == "src/train.py"
    assert not (project / "train.py").exists()


@pytest.mark.full
def test_the_only_file_below_that_mentions_a_framework_is_found(project):
    (project / "pkg").mkdir()
    (project / "pkg/finetune.py").write_text("from transformers import Trainer\n")
    (project / "pkg/plot.py").write_text("import matplotlib\n")
    assert "wrote job.toml for pkg/finetune.py" in init().stdout


def test_which_of_several_scripts_below_is_asked(project):
    for number in range(7):
        (project / f"exp{number}").mkdir()
        (project / f"exp{number}/train.py").write_text("import torch\n")
    message = init(status=2).stderr
    assert (
        "exp0/train.py, exp1/train.py, exp2/train.py, exp3/train.py, exp4/train.py and 2 more could"
        in message
    )
    assert not (project / "train.py").exists()


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("swift sft --model 'a b'  # mine", ("swift", "sft", "--model", "a b")),
        ("python -m my.module", ("python", "-m", "my.module")),
        ("NPROC_PER_NODE=2 swift sft", ("bash", "-c", "NPROC_PER_NODE=2 swift sft")),
        ("torchrun --node-rank $NODE_RANK x.py", ("bash", "-c", "torchrun --node-rank $NODE_RANK x.py")),
    ],
)
def test_a_command_is_taken_as_it_is_typed_in_a_shell(jobs, project, line, command):
    lines = init("--command", line).stdout.splitlines()
    assert lines[0] == f"wrote job.toml for {command[0]}"
    spec = load_job(project / "job.toml")
    assert (spec.run.command, spec.run.entrypoint) == (command, None)
    assert not (project / "train.py").exists()
    (project / "data.txt").write_text("so that there is something to send")
    assert jobs.run_json("plan")["launches"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--command", "swift 'sft"], '--command: "swift \'sft" is not a command: No closing quotation'),
        (["--command", "  "], "--command is empty; name a program"),
        (["--command", "swift", "--entrypoint", "a.py"], "give --entrypoint or --command, not both"),
    ],
)
def test_what_is_no_command_is_refused(project, arguments, message):
    assert init(*arguments, status=2).stderr == f"error: {message}\n"
    assert not (project / "job.toml").exists()


def test_the_script_may_lie_deeper_and_have_an_odd_name(project):
    name = 'src/my "best" tränìng.py'
    (project / "src").mkdir()
    (project / name).write_text(SESSION)
    init("--entrypoint", name)
    assert load_job(project / "job.toml").run.entrypoint == name


@pytest.mark.parametrize("name", ["nowhere.py", "../outside.py", "src"])
def test_a_script_that_is_not_inside_is_refused(project, name):
    (project.parent / "outside.py").touch()
    (project / "src").mkdir()
    assert init("--entrypoint", name, status=2).stderr == (
        f'error: --entrypoint: "{name}" is not a file inside {project}\n'
    )
    assert not (project / "job.toml").exists()


def test_a_script_without_a_session_is_told_what_it_lacks(project):
    (project / "train.py").write_text("import torch\n")
    result = init()
    assert "train.py opens no session, so it starts over after a reclaim; see [checkpoint]" in result.stderr
    assert '# directory = "output/checkpoint-*"  # or a file: ' in (project / "job.toml").read_text()


@pytest.mark.parametrize(
    ("line", "suggested"),
    [
        ('torch.save(state, "checkpoint.pth.tar")', '"checkpoint.pth.tar"'),
        ('torch.save(state, f"out/step-{step:04}.pt")', '"out/step-*.pt"'),
        ('torch.save(a, "a.pt"); torch.save(b, "best/b.ckpt"); print("now.")', '["a.pt", "best/b.ckpt"]'),
    ],
)
def test_the_files_that_a_script_saves_are_suggested(project, line, suggested):
    """A script that saves one file was told of directories alone."""
    (project / "train.py").write_text(f"import torch\n{line}\n")
    init()
    text = (project / "job.toml").read_text()
    assert f"# directory = {suggested}  # as in the script" in text
    (project / "job.toml").write_text(text.replace("# directory", "directory"))
    assert load_job(project / "job.toml").checkpoint.directory is not None


def test_a_job_file_is_replaced_only_by_force(project):
    (project / "job.toml").write_text("mine")
    (project / "train.py").write_text(SESSION)
    assert init(status=2).stderr == "error: job.toml already exists; to replace it, add --force\n"
    assert (project / "job.toml").read_text() == "mine"
    init("--force")
    assert load_job(project / "job.toml").run.entrypoint == "train.py"
    assert (project / "train.py").read_text() == SESSION


def test_the_first_line_names_the_shipped_schema_and_the_file_is_valid_by_it(project):
    init()
    text = (project / "job.toml").read_text()
    url = re.fullmatch(r"#:schema (file:///\S+)", text.splitlines()[0])[1]
    schema = json.loads(Path(unquote(urlsplit(url).path)).read_text())
    jsonschema.validate(read_toml(project / "job.toml"), schema)


@pytest.mark.parametrize("has_session", [True, False])
def test_what_stands_in_comments_is_valid_too(tmp_path, has_session):
    text = job_file_text("digits", "train.py", has_session=has_session)
    shown = re.sub(r"(?m)^# (?=\w+ = |\[\[)", "", text)
    (tmp_path / "job.toml").write_text(shown)
    spec = load_job(tmp_path / "job.toml")
    assert spec.resources.accelerator == "A100"
    assert spec.run.secrets == ("WANDB_API_KEY",)
    assert spec.limits.max_runtime == 36000
    assert (spec.limits.idle_after, spec.limits.on_idle) == (3600, "stop")
    assert spec.providers["local"]["reclaims"] == [{"after_seconds": "20s", "notice": "10s"}]
    assert spec.checkpoint.directory == (None if has_session else "output/checkpoint-*")


def test_a_directory_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    assert init(tmp_path / "file" / "x", status=1).stderr == (
        f"error: {tmp_path}/file/x cannot be written: Not a directory\n"
    )


@pytest.mark.full
def test_a_script_whose_imports_take_long_gets_the_line_that_saves_them(project, monkeypatch):
    """With the seconds as they are on this machine; what differs from rank to rank is left out."""
    pytest.importorskip("torch")
    busy = "import os, time\nend = time.perf_counter() + {}\nwhile time.perf_counter() < end:\n    pass\n"
    modules = project.parent / "modules"
    modules.mkdir()
    (modules / "slow_one.py").write_text(busy.format(1.1))
    (modules / "slow_by_rank.py").write_text(busy.format(0.2) + "RANK = os.environ.get('LOCAL_RANK')\n")
    (project / "mine.py").write_text("raise SystemExit\n")
    (project / "train.py").write_text(
        "import os, mine\nimport slow_by_rank\nfrom slow_one import end as the_end\nimport nowhere\n"
        + SESSION
    )
    monkeypatch.setenv("PYTHONPATH", str(modules), prepend=os.pathsep)
    init()
    text = (project / "job.toml").read_text()
    (line,) = [line for line in text.splitlines() if "preload =" in line]
    assert re.fullmatch(r'# preload = \["slow_one.end"\]  # would save \d+\.\d s of each restart', line)
    (project / "job.toml").write_text(text.replace("# preload", "preload"))
    assert load_job(project / "job.toml").run.preload == ("slow_one.end",)


@pytest.mark.full
@pytest.mark.parametrize(
    "script", [SESSION, "import torch, json\n" + SESSION, "import\n", "import not_there\n"]
)
def test_nothing_is_suggested_where_nothing_is_measured(project, script):
    (project / "train.py").write_text(script)
    init()
    assert "preload =" not in (project / "job.toml").read_text()
