"""A usual training script, which does not know cloudspot and saves its own checkpoints.

Every SAVE_EVERY steps, it writes ``output/checkpoint-N``; at its start, it resumes from the newest one. It
learns to read the handwritten digits that scikit-learn ships.
"""

import os
import re
import time
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn

OUTPUT = Path("output")
TOTAL_STEPS = int(os.environ.get("TOTAL_STEPS", "600"))
SAVE_EVERY = 50
BATCH_SIZE = 64
STEP_SECONDS = float(os.environ.get("STEP_SECONDS", "0.06"))  # simulates a larger model


def newest_checkpoint() -> Path | None:
    found = [path for path in OUTPUT.glob("checkpoint-*") if re.fullmatch(r"checkpoint-\d+", path.name)]
    return max(found, key=lambda path: int(path.name.split("-")[1]), default=None)


def main() -> None:
    torch.manual_seed(0)
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).flatten(1) / 16
    labels = torch.tensor(digits.target)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    first = 0
    checkpoint = newest_checkpoint()
    if checkpoint is not None:
        model.load_state_dict(torch.load(checkpoint / "model.pt", weights_only=True))
        saved = torch.load(checkpoint / "trainer.pt", weights_only=True)
        optimizer.load_state_dict(saved["optimizer"])
        torch.set_rng_state(saved["rng"])
        first = saved["step"]
        print(f"resuming from {checkpoint} at step {first}", flush=True)

    for step in range(first, TOTAL_STEPS):
        batch = torch.randint(len(images), (BATCH_SIZE,))
        loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(STEP_SECONDS)
        done = step + 1
        if done % SAVE_EVERY == 0:
            print(f"step {done}  loss {loss.item():.3f}", flush=True)
            directory = OUTPUT / f"checkpoint-{done}"
            directory.mkdir(parents=True, exist_ok=True)
            torch.save(model.state_dict(), directory / "model.pt")
            torch.save(
                {"optimizer": optimizer.state_dict(), "rng": torch.get_rng_state(), "step": done},
                directory / "trainer.pt",
            )

    model.eval()
    with torch.no_grad():
        share = (model(images).argmax(dim=1) == labels).float().mean().item()
    print(f"done after {TOTAL_STEPS} steps: reads {share:.1%} of the digits", flush=True)


if __name__ == "__main__":
    main()
