"""A small Llama learns to write Python, with transformers' Trainer. The lines for cloudspot are marked."""

import os
import sys
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from cloudspot.train.hf import SpotCallback  # cloudspot

CONTEXT = 48


class Windows(torch.utils.data.Dataset):
    """Every 37th window of a Python file's bytes; one window in eight is for the evaluation."""

    def __init__(self, path, *, is_for_training):
        text = torch.tensor(list(Path(path).read_bytes()[:30_000]))
        windows = text.unfold(0, CONTEXT, 37)
        is_training = torch.arange(len(windows)) % 8 > 0
        self.windows = windows[is_training if is_for_training else ~is_training]

    def __len__(self):
        return len(self.windows)

    def __getitem__(self, index):
        return {"input_ids": self.windows[index], "labels": self.windows[index]}


def main(epochs):
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=256,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=1,
            num_attention_heads=2,
            attention_dropout=0.1,
        )
    )
    arguments = TrainingArguments(
        output_dir="output",
        num_train_epochs=epochs,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        learning_rate=3e-3,
        lr_scheduler_type="cosine",
        eval_strategy="steps",
        eval_steps=40,
        logging_steps=10,
        save_strategy="no",  # the session saves
        report_to=[],
        use_cpu=not torch.cuda.is_available(),
    )
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=Windows(os.__file__, is_for_training=True),
        eval_dataset=Windows(os.__file__, is_for_training=False),
    )
    trainer.add_callback(SpotCallback(trainer))  # cloudspot
    trainer.train()
    trainer.save_model("artifacts/model")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 4)
