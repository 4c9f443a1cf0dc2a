"""Keeps torch from importing its compiler, which this training never uses.

DDP and each optimizer import ``torch._dynamo`` at their first use, only to mark functions that it must not
trace. That takes 1.5 s of CPU in every process that the fork server does not fork, half as long as all else
that a process does before its first step. The examples and the tests of the session train with the real one.
"""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def leave_compiler_out() -> None:
    """Put a module in the compiler's place that marks nothing; call it before the first DDP or optimizer."""
    stand_in: Any = ModuleType("torch._dynamo")
    stand_in.disable = lambda function, *_args, **_options: function
    stand_in.graph_break = lambda: None
    stand_in.trace_rules = SimpleNamespace(clear_lru_cache=lambda: None)
    stand_in.utils = SimpleNamespace(get_optimize_ddp_mode=lambda: "no_optimization")
    sys.modules["torch._dynamo"] = torch._dynamo = stand_in


def data_parallel(model: nn.Module, *, find_unused_parameters: bool) -> nn.Module:
    """Wrap the model."""
    return DistributedDataParallel(model, find_unused_parameters=find_unused_parameters)
