"""Trains with the habits of diffusers' example for unconditional image generation.

Every ``--checkpointing_steps`` it writes ``checkpoint-N`` with accelerate's ``save_state``, whose hook saves the model
below ``unet``; it resumes from the ``latest`` of them, and in the end saves the whole pipeline beside them.
Source: github.com/huggingface/diffusers, examples/unconditional_image_generation/train_unconditional.py at
58eb52c080 (read 2026-11).
"""

import argparse
import json
import os
import time
from pathlib import Path

import torch
from accelerate import Accelerator
from safetensors.torch import load_file, save_file
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

STEP_SECONDS = float(os.environ.get("STEP_SECONDS", "0"))  # as if the model were larger than it is


def save_pretrained(model, directory):
    directory.mkdir(parents=True, exist_ok=True)
    save_file(model.state_dict(), directory / "diffusion_pytorch_model.safetensors")
    (directory / "config.json").write_text(json.dumps({"sample_size": 8}))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--output_dir", default="ddpm-model-64")
    parser.add_argument("--num_epochs", type=int, default=40)
    parser.add_argument("--checkpointing_steps", type=int, default=500)
    parser.add_argument("--resume_from_checkpoint", default=None)
    args = parser.parse_args()
    output = Path(args.output_dir)
    accelerator = Accelerator(cpu=True)

    def save_model_hook(models, weights, directory):
        for model in models:
            save_pretrained(model, Path(directory, "unet"))
            weights.pop()

    def load_model_hook(models, directory):
        while models:
            models.pop().load_state_dict(
                load_file(Path(directory, "unet", "diffusion_pytorch_model.safetensors"))
            )

    accelerator.register_save_state_pre_hook(save_model_hook)
    accelerator.register_load_state_pre_hook(load_model_hook)
    output.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    images = torch.randn(384, 8)
    model = nn.Sequential(nn.Linear(8, 32), nn.SiLU(), nn.Linear(32, 8))
    optimizer = torch.optim.AdamW(model.parameters(), 0.001)
    loader = DataLoader(TensorDataset(images), batch_size=16, shuffle=True)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 100, 0.9)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    global_step, first_epoch, resume_step = 0, 0, 0
    if args.resume_from_checkpoint == "latest":
        names = sorted(output.glob("checkpoint*"), key=lambda path: int(path.name.split("-")[1]))
        if names:
            accelerator.print(f"Resuming from checkpoint {names[-1].name}")
            accelerator.load_state(str(names[-1]))
            global_step = int(names[-1].name.split("-")[1])
            first_epoch, resume_step = divmod(global_step, len(loader))
    for epoch in range(first_epoch, args.num_epochs):
        for step, (batch,) in enumerate(loader):
            if epoch == first_epoch and step < resume_step:
                continue
            noise = torch.randn_like(batch)
            loss = (model(batch + noise) - noise).square().mean()
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            time.sleep(STEP_SECONDS)
            global_step += 1
            print(f"step {global_step}", flush=True)
            if global_step % args.checkpointing_steps == 0:
                accelerator.save_state(str(output / f"checkpoint-{global_step}"))
    save_pretrained(accelerator.unwrap_model(model), output / "unet")
    (output / "model_index.json").write_text(json.dumps({"_class_name": "DDPMPipeline"}))


if __name__ == "__main__":
    main()
