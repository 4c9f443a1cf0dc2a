"""Which trackers are suggested: those whose modules the code imports, and no others."""

import pytest

from cloudspot.cli.preparing.imported_trackers import imported_trackers


@pytest.mark.parametrize(
    ("code", "trackers"),
    [
        ("import wandb", ("wandb",)),
        ("def f():\n    import mlflow.pytorch as m", ("mlflow",)),
        ("from torch.utils.tensorboard import SummaryWriter", ("tensorboard",)),
        ("from torch.utils import tensorboard", ("tensorboard",)),
        ("import tensorboardX", ("tensorboard",)),
        ("from lightning.pytorch.loggers import MLFlowLogger, WandbLogger", ("mlflow", "wandb")),
        ("from pytorch_lightning.loggers import TensorBoardLogger", ("tensorboard",)),
        ("import wandb_like, torch\nprint('import wandb')  # import mlflow", ()),
        ("from . import wandb", ()),
        ("from .wandb import log", ()),
        ("import wandb ?", ()),
    ],
)
def test_imports_alone_tell(tmp_path, code, trackers):
    script = tmp_path / "train.py"
    script.write_text(code)
    assert imported_trackers([script]) == trackers


def test_any_of_several_files_counts_and_a_missing_one_does_not(tmp_path):
    (tmp_path / "a.py").write_text("import torch")
    (tmp_path / "b.py").write_bytes(b"# -*- coding: latin-1 -*-\n# \xe9\nimport wandb")
    assert imported_trackers([tmp_path / "a.py", tmp_path / "b.py", tmp_path / "c.py"]) == ("wandb",)
