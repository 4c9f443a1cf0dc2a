"""A stand-in for a console script such as ms-swift's ``swift sft``; it runs transformers' Trainer.

It does not know cloudspot. Like most such programs, it writes ``output_dir/checkpoint-N``, and ``main`` makes
it resume from the newest one.
"""

import time
from pathlib import Path

import torch
from transformers import HfArgumentParser, LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint


class Words(torch.utils.data.Dataset):
    def __len__(self):
        return 4000

    def __getitem__(self, index):
        time.sleep(0.005)  # simulates a larger model
        words = torch.randint(0, 64, (16,), generator=torch.Generator().manual_seed(index)).cumsum(0) % 64
        return {"input_ids": words, "labels": words}


def main():
    (arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
    arguments.report_to = []
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2
        )
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=Words())
    is_resumed = Path(arguments.output_dir).is_dir()
    result = trainer.train(get_last_checkpoint(arguments.output_dir) if is_resumed else None)
    loss = trainer.evaluate(torch.utils.data.Subset(Words(), range(64)))["eval_loss"]
    print(f"trained {result.global_step} steps, loss {loss:.6f}", flush=True)


if __name__ == "__main__":
    main()
