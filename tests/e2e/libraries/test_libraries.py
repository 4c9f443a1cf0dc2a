"""Scripts as users of well-known libraries write them, whose machines are taken with and without a notice.

Each directory here is one such script, which knows nothing of cloudspot, and its job file. In a cloud's sandbox they
run as in docs/frameworks.md, whose table has what these tests measure. `tox -e libraries` installs the libraries.
"""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.jobs import interrupted_job
from support.jobs.acting_user import COMMAND, User
from support.jobs.interrupted_job import Interrupted, interrupt
from support.jobs.isolated_machines import needs_isolated_machines

pytestmark = [
    pytest.mark.libraries,
    pytest.mark.timeout(1800),
]

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Library:
    """How one script is run, and what must come of it."""

    packages: Mapping[str, str]
    """What has to be installed, by the names of the modules."""
    evidence: Sequence[str]
    """How states of its checkpoints are known to be complete: beginnings of what ``show`` says."""
    results: Sequence[str]
    """Files that the job keeps."""
    is_told: bool = False
    """Whether it saves on a signal."""
    names_steps: bool = False
    """Whether the checkpoints' names end with the step."""
    save_steps: int = 24
    """How many steps it makes between two saves."""
    num_steps: int = 960
    step_seconds: float = 0.25


PROVEN = ("proven complete by",)
SEEN = ("taken for complete since",)
LIBRARIES = {
    "diffusers": Library(
        {"accelerate": "accelerate", "safetensors": "safetensors"},
        PROVEN,
        ["ddpm-model-64/unet/diffusion_pytorch_model.safetensors"],
        names_steps=True,
    ),
    "hydra": Library(
        {"hydra": "hydra-core", "lightning": "lightning"}, PROVEN, ["logs/train/runs/*/checkpoints/last.ckpt"]
    ),
    "ignite": Library({"ignite": "pytorch-ignite"}, PROVEN, ["line.pt"], names_steps=True),
    "imagenet": Library({}, PROVEN, ["checkpoint.pth.tar", "model_best.pth.tar"]),
    "keras": Library({"keras": "keras"}, PROVEN, ["final.keras", "log.csv"]),
    "lightning": Library({"lightning": "lightning"}, PROVEN, ["line.ckpt"], is_told=True),
    "stable_baselines3": Library({"stable_baselines3": "stable-baselines3"}, PROVEN, ["ppo.zip"]),
    "timm": Library({}, SEEN, ["output/train/run/last.pth.tar", "output/train/run/summary.csv"]),
    "transformers": Library(
        {"transformers": "transformers", "accelerate": "accelerate"},
        PROVEN,
        ["output/final/model.safetensors"],
        is_told=True,
        names_steps=True,
    ),
    "trl": Library(
        {"trl": "trl"}, PROVEN, ["output/final/model.safetensors"], is_told=True, names_steps=True
    ),
    "ultralytics": Library(
        {"torchvision": "torchvision", "ultralytics": "ultralytics"},
        SEEN,
        ["runs/detect/train/weights/best.pt"],
        save_steps=1,
        num_steps=100,
        step_seconds=0.5,
    ),
}
CASES = [
    pytest.param(
        name,
        marks=[
            pytest.mark.skipif(
                importlib.util.find_spec(module) is None, reason=f"NOT TESTED, no {module} is installed"
            )
            for module in library.packages
        ],
    )
    for name, library in LIBRARIES.items()
]


def options(library: Library) -> list[str]:
    sets = (f'run.env.STEP_SECONDS="{library.step_seconds}"', 'run.env.OMP_NUM_THREADS="1"')
    return [word for one in sets for word in ("--set", one)]


@pytest.mark.parametrize("name", CASES)
def test_a_script_goes_on_from_its_newest_save_and_keeps_its_results(user: User, name: str) -> None:
    library = LIBRARIES[name]
    seen = interrupt(
        "local", HERE / name / "job.toml", library.save_steps, options(library), environ=user.environ
    )
    check(library, seen)


@needs_isolated_machines
@pytest.mark.parametrize("name", CASES)
def test_a_script_does_so_in_an_emulated_cloud(user: User, name: str) -> None:
    library = LIBRARIES[name]
    inside = [sys.executable, interrupted_job.__file__, "aws", str(HERE / name / "job.toml")]
    command = [*COMMAND, "sandbox", "aws", "--reclaim", "none", "--", *inside, str(library.save_steps)]
    packages = " ".join(library.packages.values())
    setup = ["--set", f'run.setup="pip install {packages}"'] if packages else []
    done = subprocess.run(
        [*command, *options(library), *setup], env=user.environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{done.stdout[-8000:]}\n{done.stderr[-8000:]}"
    check(library, Interrupted(**json.loads(done.stdout)))


def check(library: Library, seen: Interrupted) -> None:
    lost = steps_lost(library, seen)
    print(f"steps lost at a notice, a loss without one, and a stop: {lost}")
    assert [one["what"] for one in seen.show["turns"]] == ["stopped", "resumed", "succeeded"]
    assert len(seen.show["nodes"]) == len(seen.show["generations"]) == 4
    # Never older than what was in the store before.
    for commit, generation in zip(seen.commits, seen.show["generations"][1:], strict=False):
        assert generation["restored"]["step"] >= commit["step"]
    at_notice, at_loss, at_stop = lost
    if library.is_told:
        assert max(at_notice, at_stop) <= 1
    # As many saves as a busy machine makes until the agent has had its turn.
    assert max(at_notice, at_loss, at_stop) <= 6 * library.save_steps
    # The next save may begin before a busy agent has seen what proves this one.
    assert any(commit["evidence"].startswith(tuple(library.evidence)) for commit in seen.commits), (
        seen.commits
    )
    kept = [*seen.artifacts, *seen.checkpoint]
    for result in library.results:
        assert any(Path(name).match(result) for name in kept), (result, kept)


def steps_lost(library: Library, seen: Interrupted) -> list[int]:
    """Return how many steps were made again after each of the three, from what the script has printed.

    Each part begins with the step after a save, and each step is made at least once.
    """
    made: dict[str, list[int]] = {}
    for line in seen.log:
        found = re.match(r"(?:step|epoch) (\d+)$", line["text"])
        if found:
            made.setdefault(line["node"], []).append(int(found[1]))
    parts = list(made.values())
    assert len(parts) == 4, list(made)
    for steps in parts:
        assert steps == list(range(steps[0], steps[-1] + 1))
    assert (parts[0][0], parts[-1][-1]) == (1, library.num_steps)
    restored = [one["restored"]["step"] for one in seen.show["generations"][1:]]
    begun = [steps[0] - 1 for steps in parts[1:]]
    for step in begun:
        assert step > 0
        assert library.is_told or step % library.save_steps == 0
    if library.names_steps:
        assert begun == restored
    lost = [before[-1] - step for before, step in zip(parts, begun, strict=False)]
    assert min(lost) >= 0, lost
    return lost
