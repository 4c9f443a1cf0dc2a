"""Trains a tiny Llama with the Trainer of transformers."""

import os
import time
from pathlib import Path

import torch
from transformers import (
    HfArgumentParser,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from transformers.trainer_utils import get_last_checkpoint

STEP_SECONDS = float(os.environ.get("STEP_SECONDS", "0"))  # as if the model were larger than it is


class Words(torch.utils.data.Dataset):
    def __len__(self):
        return 4000

    def __getitem__(self, index):
        words = torch.randint(0, 64, (16,), generator=torch.Generator().manual_seed(index)).cumsum(0) % 64
        return {"input_ids": words, "labels": words}


class Progress(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        time.sleep(STEP_SECONDS)
        print(f"step {state.global_step}", flush=True)


def main():
    (arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2
    )
    trainer = Trainer(
        model=LlamaForCausalLM(config), args=arguments, train_dataset=Words(), callbacks=[Progress()]
    )
    output = Path(arguments.output_dir)
    trainer.train(resume_from_checkpoint=get_last_checkpoint(output) if output.is_dir() else None)
    trainer.save_model(str(output / "final"))


if __name__ == "__main__":
    main()
