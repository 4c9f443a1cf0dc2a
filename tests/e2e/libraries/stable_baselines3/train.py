"""Teaches CartPole to PPO of stable-baselines3."""

import os
import time
from pathlib import Path

import gymnasium
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback, CheckpointCallback

STEP_SECONDS = float(os.environ.get("STEP_SECONDS", "0"))  # as if the environment were slower than it is
TOTAL_STEPS = 960


class Progress(BaseCallback):
    def _on_step(self):
        time.sleep(STEP_SECONDS)
        print(f"step {self.num_timesteps}", flush=True)
        return True


def main():
    env = gymnasium.make("CartPole-v1")
    found = Path("models").glob("ppo_*_steps.zip")
    newest = max(found, key=lambda path: int(path.stem.split("_")[1]), default=None)
    if newest is None:
        model = PPO("MlpPolicy", env, n_steps=24, batch_size=24, seed=0, device="cpu")
    else:
        model = PPO.load(newest, env=env, device="cpu")
    callbacks = [CheckpointCallback(save_freq=24, save_path="models", name_prefix="ppo"), Progress()]
    model.learn(TOTAL_STEPS - model.num_timesteps, callback=callbacks, reset_num_timesteps=False)
    model.save("ppo")


if __name__ == "__main__":
    main()
