"""Trains a small YOLO of ultralytics on images of squares that it draws itself."""

import os
import time
from pathlib import Path

import cv2
import numpy as np
from ultralytics import YOLO

STEP_SECONDS = float(os.environ.get("STEP_SECONDS", "0"))  # as if the model were larger than it is
STEPS_AN_EPOCH = 4
RUN = "runs/detect/train"


def draw_data(directory):
    chance = np.random.default_rng(0)
    for kind in ("images", "labels"):
        (directory / kind).mkdir(parents=True, exist_ok=True)
    for number in range(2 * STEPS_AN_EPOCH):
        image = np.zeros((64, 64, 3), "uint8")
        x, y = chance.integers(16, 48, 2).tolist()
        image[y - 10 : y + 10, x - 10 : x + 10] = 255
        cv2.imwrite(str(directory / "images" / f"{number}.png"), image)
        (directory / "labels" / f"{number}.txt").write_text(f"0 {x / 64} {y / 64} {20 / 64} {20 / 64}\n")
    path = directory / "data.yaml"
    path.write_text(f"path: {directory.absolute()}\ntrain: images\nval: images\nnames: [square]\n")
    return str(path)


def report(trainer):
    print(f"epoch {trainer.epoch + 1}", flush=True)


def main():
    data, last = draw_data(Path("squares")), Path(RUN, "weights", "last.pt")
    model = YOLO(last if last.exists() else "yolo11n.yaml")
    model.add_callback("on_train_batch_end", lambda _: time.sleep(STEP_SECONDS))
    model.add_callback("on_model_save", report)
    model.train(
        data=data,
        resume=last.exists(),
        epochs=100,
        imgsz=32,
        batch=2,
        workers=0,
        device="cpu",
        plots=False,
        save_dir=RUN,  # else last.pt names the directory of the computer that wrote it
    )


if __name__ == "__main__":
    main()
