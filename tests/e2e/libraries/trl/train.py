"""Trains a tiny Llama with the SFTTrainer of trl."""

import os
import time
from pathlib import Path

from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback
from transformers.trainer_utils import get_last_checkpoint
from trl import SFTConfig, SFTTrainer, TrlParser

STEP_SECONDS = float(os.environ.get("STEP_SECONDS", "0"))  # as if the model were larger than it is
WORDS = [f"word{number}" for number in range(60)]


class Progress(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        time.sleep(STEP_SECONDS)
        print(f"step {state.global_step}", flush=True)


def tokenizer():
    names = ["<unk>", "<pad>", "<eos>", *WORDS]
    made = Tokenizer(models.WordLevel({name: number for number, name in enumerate(names)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=made, unk_token="<unk>", pad_token="<pad>", eos_token="<eos>"
    )


def main():
    (arguments,) = TrlParser(SFTConfig).parse_args_and_config()
    texts = [" ".join(WORDS[(start + step) % 60] for step in range(12)) for start in range(2000)]
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2
    )
    trainer = SFTTrainer(
        model=LlamaForCausalLM(config),
        args=arguments,
        train_dataset=Dataset.from_dict({"text": texts}),
        processing_class=tokenizer(),
        callbacks=[Progress()],
    )
    output = Path(arguments.output_dir)
    trainer.train(resume_from_checkpoint=get_last_checkpoint(output) if output.is_dir() else None)
    trainer.save_model(str(output / "final"))


if __name__ == "__main__":
    main()
