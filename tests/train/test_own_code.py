"""Which files of a job a script imports, and what in them has to come before torch."""

import os

import pytest

from cloudspot.train.own_code import obstacle, own_modules

READ_EARLY = (
    *("OMP_NUM_THREADS", "KMP_AFFINITY", "GOMP_CPU_AFFINITY", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"),
    *("CUDA_VISIBLE_DEVICES", "TORCH_LOGS", "PYTORCH_CUDA_ALLOC_CONF"),
)
"""One of each kind that torch and its libraries read when they are loaded."""


@pytest.fixture
def script(tmp_path, monkeypatch):
    """A script that imports from packages of its own, from a directory of ``sys.path``, and from elsewhere."""
    files = {
        "code/train.py": "import package.settings, torch\ndef later():\n    from other import sub\n",
        "code/package/settings.py": "import shared, json\n",  # a directory without an __init__.py
        "code/other/__init__.py": "",
        "code/other/sub.py": "from . import third\nfrom .deep.leaf import value\n",
        "code/other/third.py": "not Python\n",
        "code/other/deep/leaf.py": "from ..fourth import *\nimport train\n",
        "code/other/fourth.py": "",
        "code/other/unused.py": "",
        "src/shared.py": "",
        "site-packages/installed.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for name in ("src", "site-packages"):
        monkeypatch.syspath_prepend(tmp_path / name)
    return tmp_path / "code" / "train.py"


def test_what_is_imported_directly_or_not_is_found_where_it_is_not_installed(script):
    found = {path.relative_to(script.parents[1]).as_posix() for path in own_modules(script)}
    assert found == {
        *("code/train.py", "code/package/settings.py", "src/shared.py", "code/other/__init__.py"),
        *("code/other/sub.py", "code/other/third.py", "code/other/deep/leaf.py", "code/other/fourth.py"),
    }


@pytest.mark.parametrize(
    ("text", "is_early"),
    [
        ("os.environ['OMP_NUM_THREADS'] = '1'", True),
        ("os.environ.update(\n    {'TORCH_LOGS': 'dynamo'}\n)", True),
        ("os.putenv(\n    'CUDA_VISIBLE_DEVICES', '0'\n)", True),
        *((f"os.putenv('{name}', '1')", True) for name in READ_EARLY),
        ("print(os.environ['TORCHELASTIC_RUN_ID'], 'TORCH_NCCL_DEBUG')", False),
        ("os.environ['TOKENIZERS_PARALLELISM'] = 'false'", False),
        ("LIBRARY = 'OMP_LIB'", False),
    ],
)
def test_only_variables_that_are_read_early_are_in_the_way(script, text, is_early):
    assert obstacle(script) == ""
    script.write_text(f"import os\n{text}\n")
    expected = "train.py may set a variable that is read before it starts"
    assert obstacle(script) == (expected if is_early else "")


def test_a_script_that_changes_is_read_again_though_its_size_stays(script):
    text = script.read_text()
    harmful = "import os; os.putenv('OMP_NUM_THREADS', '1')\n"
    script.write_text(harmful.replace("OMP_NUM", "NUM_OMP") + text)
    before = script.stat()
    assert obstacle(script) == ""
    script.write_text(harmful + text)
    os.utime(script, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert script.stat().st_size == before.st_size
    assert obstacle(script).startswith("train.py may set a variable")


def test_a_script_that_is_not_there_tells_that_itself(tmp_path):
    assert obstacle(tmp_path / "train.py") == ""
