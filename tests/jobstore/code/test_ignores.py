"""Which files are code: the same as git says."""

import random
import subprocess
from pathlib import Path

import pytest

from cloudspot.errors import BundleError
from cloudspot.jobstore.code.bundle import make_bundle

pytestmark = pytest.mark.usefixtures("_own_git")


@pytest.fixture
def _own_git(monkeypatch, tmp_path):
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "no-config"))


@pytest.fixture
def _without_git(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")


def git(root, *args):
    return subprocess.run(["git", "-C", str(root), *args], check=True, capture_output=True, text=True).stdout


def write(root, *names, **ignores):
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")


def ignore(root, directory, *lines, name=".gitignore"):
    (root / directory).mkdir(parents=True, exist_ok=True)
    (root / directory / name).write_text("\n".join(lines) + "\n")


def bundled(workdir):
    (workdir / "main.py").write_text("")
    files = make_bundle(workdir, entrypoint="main.py").files
    return {name for name in files if Path(name).name not in (".gitignore", ".cloudspotignore", "main.py")}


def test_patterns_of_deeper_directories_outrank_those_above(tmp_path):
    write(tmp_path, "a.log", "keep/a.log", "keep/b.log", "x/y/a.txt", "x/b.txt")
    ignore(tmp_path, ".", "*.log")
    ignore(tmp_path, "keep", "!a.log")
    ignore(tmp_path, "x", "/y/")
    assert bundled(tmp_path) == {"keep/a.log", "x/b.txt"}


def test_nothing_below_an_ignored_directory_comes_back(tmp_path):
    write(
        tmp_path, "data/keep.txt", "data/other.txt", "logs/keep.txt", "logs/other.txt", "logs/deep/keep.txt"
    )
    ignore(tmp_path, ".", "data/", "!data/keep.txt", "logs/**", "!logs/keep.txt", "!logs/deep/keep.txt")
    assert bundled(tmp_path) == {"logs/keep.txt"}


def test_cloudspotignore_adds_to_gitignore_and_may_bring_back(tmp_path):
    write(tmp_path, "model.bin", "data.csv", "notes.md")
    ignore(tmp_path, ".", "*.bin", "*.csv")
    ignore(tmp_path, ".", "!data.csv", "*.md", name=".cloudspotignore")
    assert bundled(tmp_path) == {"data.csv"}


@pytest.mark.usefixtures("_without_git")
def test_secrets_and_git_itself_never_go_in_whatever_the_patterns_say(tmp_path):
    write(
        tmp_path, ".env", ".env.local", ".ENV", "sub/.env", "sub/.Env.production", ".git/config", "sub/.git/HEAD",
        "module/.git", ".envrc", "env", "a.env", ".environment",
    )  # fmt: skip
    ignore(tmp_path, ".", "!.env", "!.env.*", "!.git", "!**/.env", name=".cloudspotignore")
    assert bundled(tmp_path) == {".envrc", "env", "a.env", ".environment"}


def test_what_python_leaves_behind_is_left_out_unless_asked_for(tmp_path):
    write(tmp_path, "p/__pycache__/m.pyc", "p/m.py")
    assert bundled(tmp_path) == {"p/m.py"}
    ignore(tmp_path, ".", "!__pycache__/", name=".cloudspotignore")
    assert bundled(tmp_path) == {"p/m.py", "p/__pycache__/m.pyc"}


@pytest.mark.usefixtures("_without_git")
def test_ignore_files_of_the_enclosing_repository_count(tmp_path):
    (tmp_path / ".git").mkdir()
    work = tmp_path / "examples/digits"
    write(work, "a.ckpt", "b.txt", "c.txt", "out/x")
    ignore(tmp_path, ".", "*.ckpt", "/examples/digits/out")
    ignore(tmp_path, "examples", "b.txt", name=".cloudspotignore")
    assert bundled(work) == {"c.txt"}


def test_ignore_files_outside_of_a_repository_do_not_count(tmp_path):
    ignore(tmp_path, ".", "*")
    write(tmp_path / "work", "a.txt")
    assert bundled(tmp_path / "work") == {"a.txt"}


@pytest.mark.usefixtures("_without_git")
def test_a_working_directory_that_its_repository_ignores_is_taken_nevertheless(tmp_path):
    (tmp_path / ".git").mkdir()
    ignore(tmp_path, ".", ".tox/", "*.ckpt")
    work = tmp_path / ".tox/copy"
    write(work, "a.txt", "b.ckpt", "c.log")
    ignore(work, ".", "*.log")
    assert bundled(work) == {"a.txt", "b.ckpt"}


def test_an_invalid_pattern_matches_nothing_and_breaks_nothing(tmp_path):
    write(tmp_path, "a.txt", "b.log")
    (tmp_path / ".gitignore").write_bytes(b"abc\\\n[z-\n\xff\xfe\n*.log\r\n")
    assert "a.txt" in bundled(tmp_path)


@pytest.fixture
def checkout(tmp_path):
    root = tmp_path / "repo"
    root.mkdir()
    git(root, "init", "-q")
    return root


def commit(root):
    git(root, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x", "--allow-empty")


def test_a_tracked_file_is_code_although_a_pattern_names_it(checkout):
    write(checkout, "model.bin", "other.bin", "a.txt")
    git(checkout, "add", "-f", "model.bin")
    ignore(checkout, ".", "*.bin")
    assert bundled(checkout) == {"model.bin", "a.txt"}
    ignore(checkout, ".", "model.bin", "!other.bin", name=".cloudspotignore")
    assert bundled(checkout) == {"other.bin", "a.txt"}


def test_tracked_files_that_are_deleted_or_replaced_by_a_link_are_passed_over(checkout):
    write(checkout, "gone.txt", "pkg/a.txt", "old/b.txt")
    git(checkout, "add", ".")
    (checkout / "gone.txt").unlink()
    (checkout / "old/b.txt").unlink()
    (checkout / "old").rmdir()
    (checkout / "old").symlink_to("pkg")
    write(checkout, "pkg/b.txt")
    assert bundled(checkout) == {"pkg/a.txt", "pkg/b.txt", "old"}


def test_a_job_below_the_top_of_its_checkout_takes_its_own_files(checkout):
    write(checkout, "jobs/one/a.txt", "jobs/one/b.ckpt", "jobs/two/c.txt")
    ignore(checkout, "jobs", "*.ckpt")
    git(checkout, "add", "jobs/one/a.txt")
    assert bundled(checkout / "jobs/one") == {"a.txt"}


@pytest.mark.full
def test_submodules_and_nested_repositories_bring_their_own_files(checkout, tmp_path):
    library = tmp_path / "library"
    library.mkdir()
    git(library, "init", "-q")
    write(library, "lib.py", "pkg/deep.py")
    git(library, "add", ".")
    commit(library)
    git(checkout, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(library), "vendor/lib")
    ignore(checkout, "vendor/lib", "*.o")
    write(checkout, "vendor/lib/new.py", "vendor/lib/new.o", "a.txt")
    git(checkout, "clone", "-q", str(library), "nested")
    found = bundled(checkout)
    assert found == {
        ".gitmodules", "a.txt", "nested/lib.py", "nested/pkg/deep.py",
        "vendor/lib/lib.py", "vendor/lib/pkg/deep.py", "vendor/lib/new.py",
    }  # fmt: skip


def test_a_working_directory_that_its_checkout_ignores_keeps_its_own_rules(checkout):
    ignore(checkout, ".", "scratch/", "*.ckpt")
    write(checkout, "scratch/a.txt", "scratch/b.ckpt", "scratch/c.log")
    ignore(checkout, "scratch", "*.log")
    assert bundled(checkout / "scratch") == {"a.txt", "b.ckpt"}


def test_without_git_the_ignore_files_of_a_checkout_are_read_instead(checkout, monkeypatch):
    ignore(checkout, ".", "*.ckpt", "out/", "logs/**", "!logs/keep.txt")
    ignore(checkout, "job/pkg", "!x.ckpt")
    write(checkout, "job/a.txt", "job/a.ckpt", "job/out/b", "job/pkg/x.ckpt", "job/pkg/y.ckpt")
    with_git = bundled(checkout / "job")
    assert with_git == {"a.txt", "pkg/x.ckpt"}
    monkeypatch.setenv("PATH", "/nonexistent")
    assert bundled(checkout / "job") == with_git


def test_a_repository_that_git_cannot_read_is_refused_in_its_words(checkout):
    write(checkout, "a.txt")
    (checkout / ".git/HEAD").write_text("damaged")
    with pytest.raises(BundleError, match=r"git cannot list the code in \S+: fatal: not a git repo"):
        bundled(checkout)


def test_a_checkout_of_another_owner_is_refused_with_the_command_that_allows_it(checkout, monkeypatch):
    write(checkout, "model.bin")
    git(checkout, "add", "-f", "model.bin")
    ignore(checkout, ".", "*.bin")
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    with pytest.raises(BundleError) as error:
        bundled(checkout)
    assert "dubious ownership" in str(error.value)
    assert f"git config --global --add safe.directory {checkout}" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_hook_of_another_repository_does_not_redirect_git(checkout, tmp_path, monkeypatch):
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "-q")
    ignore(checkout, ".", "*.ckpt")
    write(checkout, "a.txt", "b.ckpt")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other / ".git/index"))
    assert bundled(checkout) == {"a.txt"}


def test_a_checkout_and_an_export_of_it_give_the_same_bundle(checkout, tmp_path):
    write(checkout, "main.py", "b.txt", "pkg/a.txt")
    git(checkout, "add", ".")
    export = tmp_path / "export"
    write(export, "pkg/a.txt", "main.py", "b.txt")
    assert make_bundle(checkout, entrypoint="main.py").data == make_bundle(export, entrypoint="main.py").data


NAMES = ["a", "b", "a.log", "b.txt", "data", "keep.txt", "x y", "#c", "!d", "e\\f"]
PATTERNS = [
    "a", "b", "/a", "a/", "/a/", "*.log", "*", "!*.log", "!a", "!/a", "!a/", "!b", "a/*", "a/**", "**/a", "**/a/",
    "a/**/b", "/data/*", "!/data/keep.txt", "!data/", "data/**", "!data/a", "*.t?t", "[ab]", "[!a]", "x y", "x\\ y",
    "\\#c", "#c", "\\!d", "a ", "a\\ ", "", "b/a", "/b/a/", "**", "!**/keep.txt", "a*b", "?", "**/data/**", "!**/",
    "keep.*", "/*", "!/*/", "*/a", "e\\\\f",
]  # fmt: skip


@pytest.mark.parametrize("seed", range(60))
def test_random_trees_and_patterns_give_what_git_gives(tmp_path, seed):
    generator = random.Random(seed)
    root = tmp_path / "repo"
    root.mkdir()
    git(root, "init", "-q")
    directories = [root]
    for _ in range(generator.randint(3, 8)):
        directory = generator.choice(directories) / generator.choice(NAMES)
        if not directory.exists():
            directory.mkdir()
            directories.append(directory)
    for directory in directories:
        for name in generator.sample(NAMES, generator.randint(1, 5)):
            if not (directory / name).exists():
                (directory / name).write_text("")
    for directory in [root, *generator.sample(directories, min(2, len(directories)))]:
        lines = generator.choices(PATTERNS, k=generator.randint(1, 4))
        (directory / ".gitignore").write_text("\n".join(lines) + "\n")
    # The one entry that must be there; git is told the same.
    with (root / ".gitignore").open("a") as file:
        file.write("!/main.py\n")
    workdir = generator.choice(directories) if generator.random() < 0.3 else root
    if workdir != root:
        with (workdir / ".gitignore").open("a") as file:
            file.write("!/main.py\n")
    (workdir / "main.py").write_text("")
    if git_ignores(root, workdir):
        workdir = root
        (root / "main.py").write_text("")
    listed = git(workdir, "ls-files", "-z", "--others", "--cached", "--exclude-standard", ".")
    expected = {name for name in listed.split("\0") if name}
    assert set(make_bundle(workdir, entrypoint="main.py").files) == expected


def git_ignores(root, path):
    done = subprocess.run(["git", "-C", str(root), "check-ignore", "-q", str(path)])
    return path != root and done.returncode == 0
