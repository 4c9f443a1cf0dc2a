"""Fits a line with Keras."""

import os
import time

import keras
import numpy as np

STEP_SECONDS = float(os.environ.get("STEP_SECONDS", "0"))  # as if the model were larger than it is
STEPS_AN_EPOCH = 24


class Progress(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        time.sleep(STEP_SECONDS)
        print(f"step {self.epoch * STEPS_AN_EPOCH + batch + 1}", flush=True)


def main():
    inputs = np.random.default_rng(0).standard_normal((16 * STEPS_AN_EPOCH, 8)).astype("float32")
    targets = inputs @ np.arange(8, dtype="float32")[:, None]
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    model.fit(
        inputs,
        targets,
        batch_size=16,
        epochs=40,
        verbose=0,
        callbacks=[
            keras.callbacks.BackupAndRestore("backup"),
            keras.callbacks.CSVLogger("log.csv", append=True),
            Progress(),
        ],
    )
    model.save("final.keras")


if __name__ == "__main__":
    main()
