"""Shapes of trainings with transformers, Lightning and Accelerate: drained and resumed, each ends as undisturbed."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from cloudspot.train import handoff
from cloudspot.train.data.replayed_loader import ReplayedLoader
from cloudspot.train.data.resumable_batches import ResumableBatches, own_order
from cloudspot.train.state.checkpoint import Checkpoint, weights_sha256

pytestmark = [
    pytest.mark.full,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore:ReduceLROnPlateau conditioned on metric:RuntimeWarning"),
]
NUM_SAMPLES = 44
EXPORTING = Path(__file__).parent / "jobs" / "exporting.py"


class Noisy(Dataset):
    """Draws random numbers where a batch is fetched."""

    def __len__(self):
        return NUM_SAMPLES

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.randn(6, generator=generator) + torch.rand(1), torch.randn(1, generator=generator)


class Stream(IterableDataset):
    def __iter__(self):
        for index in range(NUM_SAMPLES):
            yield Noisy()[index]


class CountingStream(IterableDataset):
    """Counts its epochs, and begins each at another sample."""

    def __init__(self):
        self.epoch = 0

    def __iter__(self):
        self.epoch += 1
        for index in range(NUM_SAMPLES):
            yield Noisy()[(index + self.epoch) % NUM_SAMPLES]


class StreamThatKeepsCount(CountingStream):
    def state_dict(self):
        return {"epoch": self.epoch}

    def load_state_dict(self, state):
        self.epoch = state["epoch"]


class Words(Dataset):
    def __len__(self):
        return NUM_SAMPLES

    def __getitem__(self, index):
        words = torch.randint(0, 32, (8,), generator=torch.Generator().manual_seed(index))
        masked = words.clone()
        masked[torch.randint(0, 8, (1,))] = 0
        return {"input_ids": masked, "labels": words}


def net():
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1))


@pytest.fixture
def compare(framework_training, courier):
    """``compare(main, hooks, drain_at)``: drain at these moments, resume; what ``main`` returns is as undisturbed."""

    def run(main, hooks, drain_at):
        training = framework_training(hooks)
        assert training.run(main)
        expected, final = training.result, courier.final()
        for moment in drain_at:
            assert not training.run(main, drain_at=moment)
            step = courier.drained()["step"]
            assert training.run(main, restore=courier.carry(step))
            assert training.result == expected
            assert courier.final() == final
        return final

    return run


# --- transformers ------------------------------------------------------------------------------------


def stream_of_words():
    """A streaming dataset of ``datasets``, shuffled for each epoch."""
    import datasets

    words = datasets.Dataset.from_list([Words()[index] for index in range(NUM_SAMPLES)])
    return words.to_iterable_dataset(num_shards=4).shuffle(seed=3, buffer_size=9).with_format("torch")


def hf_main(tmp_path, *, callbacks=(), data=Words, **arguments):
    import transformers

    from cloudspot.train.hf import SpotCallback

    def main():
        torch.manual_seed(0)
        config = transformers.LlamaConfig(
            vocab_size=32,
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            attention_dropout=0.2,
        )
        model = transformers.LlamaForCausalLM(config)
        given = {
            "per_device_train_batch_size": 4,
            "num_train_epochs": 3,
            "logging_steps": 2,
            "eval_strategy": "epoch",
            "save_strategy": "no",
            "learning_rate": 0.02,
            **arguments,
        }
        trainer = transformers.Trainer(
            model=model,
            args=transformers.TrainingArguments(
                output_dir=str(tmp_path / "out"), report_to=[], disable_tqdm=True, use_cpu=True, **given
            ),
            train_dataset=data(),
            eval_dataset=Words(),
            callbacks=[each() for each in callbacks],
        )
        trainer.add_callback(SpotCallback(trainer))
        trained = trainer.train()
        # Without a length, a Trainer that is resumed counts no epochs but shares of all steps.
        left_out = ("runtime", "second", *(("epoch",) if data is stream_of_words else ()))
        log = [
            {key: value for key, value in entry.items() if not any(word in key for word in left_out)}
            for entry in trainer.state.log_history
        ]
        return weights_sha256(model), trained.training_loss, log

    return main, {SpotCallback: ("on_substep_end", "on_step_end", "on_prediction_step")}


@pytest.mark.parametrize(
    ("arguments", "drain_at"),
    [
        ({"gradient_accumulation_steps": 2}, [1, 11, 13, 35]),
        pytest.param(
            {"eval_strategy": "steps", "eval_steps": 5, "logging_steps": 5, "max_steps": 19},
            [4, 8, 30],
            marks=pytest.mark.full,
        ),
        pytest.param({"data": stream_of_words, "max_steps": 19}, [11, 14, 20], marks=pytest.mark.full),
    ],
)
def test_what_the_trainer_of_transformers_logs_and_learns_is_as_undisturbed(
    compare, tmp_path, arguments, drain_at
):
    final = compare(*hf_main(tmp_path, **arguments), drain_at)
    assert final["left_early"] is False


def test_an_evaluation_at_the_start_is_not_made_again_and_callbacks_may_hold_tensors(compare, tmp_path):
    import transformers
    from transformers.trainer_callback import ExportableState

    class Mean(transformers.TrainerCallback, ExportableState):
        def __init__(self):
            self.mean = torch.zeros(())

        def on_step_end(self, args, state, control, model=None, **kwargs):
            self.mean = self.mean * 0.9 + next(model.parameters()).detach().mean() * 0.1

        def state(self):
            return {"args": {}, "attributes": {"mean": self.mean}}

    compare(*hf_main(tmp_path, callbacks=[Mean], eval_on_start=True), [14])


def test_early_stopping_counts_over_a_resume(compare, tmp_path):
    import transformers

    def patience():
        return transformers.EarlyStoppingCallback(2, early_stopping_threshold=10.0)

    arguments = {
        "metric_for_best_model": "loss",
        "load_best_model_at_end": False,
        "eval_strategy": "steps",
        "eval_steps": 3,
        "lr_scheduler_type": "constant",
    }
    final = compare(*hf_main(tmp_path, callbacks=[patience], **arguments), [2, 11, 20])
    assert (final["step"], final["left_early"], final["planned"]) == (9, True, 33)


def test_a_step_that_early_stopping_left_out_is_not_counted(compare, tmp_path):
    """It would have been the last one, and began for the session with the evaluation before it."""
    import transformers

    def patience():
        return transformers.EarlyStoppingCallback(1, early_stopping_threshold=10.0)

    arguments = {"metric_for_best_model": "loss", "eval_strategy": "steps", "eval_steps": 3, "max_steps": 7}
    final = compare(*hf_main(tmp_path, callbacks=[patience], **arguments), [2, 11])
    assert (final["step"], final["left_early"], final["planned"]) == (6, True, 7)


def too_large(monkeypatch, *, steps):
    """Have the collation of batches of more than three run out of memory, in these steps of the process."""
    import transformers

    calls = 0
    compute = transformers.Trainer.compute_loss

    def compute_loss(self, model, inputs, *args, **kwargs):
        nonlocal calls
        if model.training:
            calls += 1
            if len(inputs["input_ids"]) > 3 and calls in steps:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return compute(self, model, inputs, *args, **kwargs)

    monkeypatch.setattr(transformers.Trainer, "compute_loss", compute_loss)


def test_a_batch_size_that_is_found_on_the_way_is_that_of_the_resumed_training(
    compare, courier, tmp_path, monkeypatch
):
    too_large(monkeypatch, steps=range(1000))
    monkeypatch.setattr("accelerate.utils.memory.gc", SimpleNamespace(collect=int))  # of all tests' garbage
    main, hooks = hf_main(tmp_path, auto_find_batch_size=True, eval_on_start=True, num_train_epochs=2)
    final = compare(main, hooks, [14, 36])
    assert (final["step"], final["left_early"]) == (30, False)  # 44 samples in batches of 3


def test_smaller_batches_that_would_undo_steps_are_refused(framework_training, tmp_path, monkeypatch):
    from cloudspot.train.errors import SessionError

    too_large(monkeypatch, steps={4})
    main, hooks = hf_main(tmp_path, auto_find_batch_size=True, eval_strategy="no")
    with pytest.raises(
        SessionError, match=r"at step 3, and .* batches of 3: set per_device_train_batch_size"
    ):
        framework_training(hooks).run(main)


def test_a_second_training_of_a_trainer_is_refused_by_name(framework_training, tmp_path, monkeypatch):
    import transformers

    from cloudspot.train.errors import SessionError

    main, hooks = hf_main(tmp_path, max_steps=2, eval_strategy="no")
    trained = []
    train = transformers.Trainer.train
    monkeypatch.setattr(
        transformers.Trainer, "train", lambda self, *args: trained.append(self) or train(self, *args)
    )
    training = framework_training(hooks)
    assert training.run(main)
    with pytest.raises(SessionError, match=r"trainer.train\(\) was called a second time"):
        trained[0].train()
    with pytest.raises(SessionError, match="submit each trial as a job of its own"):
        trained[0].train(trial={"learning_rate": 1e-3})


def test_a_trainer_with_a_checkpoint_of_its_own_is_refused(framework_training, tmp_path):
    import transformers

    from cloudspot.train.errors import SessionError
    from cloudspot.train.hf import SpotCallback

    def main():
        model = transformers.LlamaForCausalLM(
            transformers.LlamaConfig(vocab_size=8, hidden_size=8, num_hidden_layers=1, num_attention_heads=2)
        )
        trainer = transformers.Trainer(
            model=model,
            args=transformers.TrainingArguments(output_dir=str(tmp_path), report_to=[], use_cpu=True),
        )
        SpotCallback(trainer)
        trainer.train(resume_from_checkpoint=True)

    with pytest.raises(SessionError, match=r"call trainer.train\(\) without"):
        framework_training({}).run(main)


# --- Lightning ---------------------------------------------------------------------------------------


def lightning_main(
    *,
    plateau=None,
    logs_means=False,
    data=Noisy,
    own=list,
    begins_epoch=lambda _net: None,
    loaders=None,
    tunes=lambda _trainer, _model, _loader: None,
    **arguments,
):
    import lightning

    from cloudspot.train.lightning import SpotCallback

    class Net(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = net()
            self.lr = 0.05

        def loss(self, batch):
            return (self.net(batch[0]) - batch[1]).square().mean()

        def training_step(self, batch, _):
            loss = sum(map(self.loss, batch)) if loaders else self.loss(batch)
            self.log("loss", loss, on_epoch=logs_means, batch_size=4)
            return loss * getattr(self, "temperature", 1.0)

        def on_train_start(self):
            self.begun = []

        def on_train_epoch_start(self):
            self.begun.append(self.current_epoch)
            begins_epoch(self)

        def validation_step(self, batch, _):
            self.log("validation", self.loss(batch))

        def configure_optimizers(self):
            optimizer = torch.optim.AdamW(self.parameters(), self.lr)
            if plateau is None:
                return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)]
            scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.7)
            config = {"scheduler": scheduler, "monitor": "validation", "interval": plateau, "strict": False}
            return {"optimizer": optimizer, "lr_scheduler": config}

    def main():
        torch.manual_seed(0)
        model = Net()
        trainer = lightning.Trainer(
            accelerator="cpu",
            callbacks=[SpotCallback(), *own()],
            logger=False,
            enable_checkpointing=False,
            enable_model_summary=False,
            **{"max_epochs": 3, "enable_progress_bar": False, **arguments},
        )
        given = loaders() if loaders else DataLoader(data(), 4, shuffle=data is Noisy)
        given = tunes(trainer, model, given) or given
        trainer.fit(model, given, DataLoader(Noisy(), 8))
        return weights_sha256(model), float(trainer.callback_metrics["validation"]), trainer.global_step

    return main, {SpotCallback: ("on_train_batch_end", "on_validation_batch_end")}


@pytest.mark.parametrize(
    "arguments",
    [
        {"accumulate_grad_batches": 2},
        pytest.param({"val_check_interval": 4, "plateau": "step"}, marks=pytest.mark.full),
        pytest.param({"plateau": "epoch"}, marks=pytest.mark.full),
        pytest.param({"data": Stream}, marks=pytest.mark.full),
        {"data": StreamThatKeepsCount},
        {"accumulate_grad_batches": 2, "max_steps": 13},
    ],
    ids=str,
)
def test_what_a_trainer_of_lightning_learns_is_as_undisturbed(compare, arguments):
    final = compare(*lightning_main(**arguments), [3, 13, 19, 30])
    assert final["left_early"] is ("data" in arguments)


def test_a_stream_that_counts_its_epochs_is_warned_of_by_name(framework_training, courier, caplog):
    main, hooks = lightning_main(data=CountingStream)
    training = framework_training(hooks)
    assert not training.run(main, drain_at=22)
    assert "CountingStream" not in caplog.text
    assert training.run(main, restore=courier.carry(courier.drained()["step"]))
    assert "The samples of CountingStream must depend only on set_epoch, a saved state" in caplog.text


def accumulation():
    from lightning.pytorch.callbacks import GradientAccumulationScheduler

    return [GradientAccumulationScheduler({0: 1, 1: 2})]


def averaging():
    from lightning.pytorch.callbacks import StochasticWeightAveraging

    return [StochasticWeightAveraging(swa_lrs=0.01, swa_epoch_start=1)]


class Data:
    """Makes ``LightningDataModule``s whose batch size a search may set."""

    def __new__(cls):
        import lightning

        class Module(lightning.LightningDataModule):
            batch_size = 2

            def train_dataloader(self):
                return DataLoader(Noisy(), self.batch_size, shuffle=True)

            def val_dataloader(self):
                return DataLoader(Noisy(), 22)

        return Module()


def tune(trainer, model, loader, *, max_val=8):
    from lightning.pytorch.tuner import Tuner

    tuner = Tuner(trainer)
    assert tuner.lr_find(model, loader, num_training=20).suggestion() is not None
    data = Data()
    tuner.scale_batch_size(model, datamodule=data, max_trials=4, max_val=max_val, steps_per_trial=1)
    assert data.batch_size == max_val
    return data.train_dataloader()


def test_a_training_that_a_tuner_has_prepared_is_resumed(compare, tmp_path):
    compare(*lightning_main(tunes=tune, max_epochs=4, default_root_dir=tmp_path), [9, 16])


def test_another_batch_size_than_that_of_the_checkpoint_is_refused(framework_training, courier):
    from cloudspot.train.errors import SessionError

    sizes = iter((8, 4))
    main, hooks = lightning_main(tunes=lambda *_: DataLoader(Noisy(), next(sizes)))
    training = framework_training(hooks)
    assert not training.run(main, drain_at=3)
    with pytest.raises(SessionError, match="batches of 8 samples, but the loader's batches now have 4"):
        training.run(main, restore=courier.carry(courier.drained()["step"]))


def test_a_checkpoint_of_lightnings_own_is_refused(framework_training, tmp_path):
    from cloudspot.train.errors import SessionError

    def main_from_checkpoint():
        main()
        trainer, model, loader = given
        trainer.save_checkpoint(tmp_path / "own.ckpt")
        trainer.callbacks = [type(each)() for each in trainer.callbacks]
        trainer.fit(model, loader, ckpt_path=tmp_path / "own.ckpt")

    given = []
    main, hooks = lightning_main(tunes=lambda *made: given.extend(made), max_epochs=1)
    with pytest.raises(SessionError, match=r"call trainer.fit\(\) without ckpt_path"):
        framework_training(hooks).run(main_from_checkpoint)


def test_a_second_fit_is_refused_by_name(framework_training):
    from cloudspot.train.errors import SessionError

    again = []

    def main_twice():
        main()
        trainer, model, loader = again
        trainer.fit(model, loader)

    main, hooks = lightning_main(tunes=lambda *given: again.extend(given), max_epochs=1)
    with pytest.raises(SessionError, match=r"trainer.fit\(\) was called a second time"):
        framework_training(hooks).run(main_twice)


def test_a_search_by_a_callback_is_refused_by_name(framework_training):
    from lightning.pytorch.callbacks import BatchSizeFinder, LearningRateFinder

    from cloudspot.train.errors import SessionError

    for finder in (BatchSizeFinder(), LearningRateFinder()):
        main, hooks = lightning_main(
            own=lambda finder=finder: [finder],
            tunes=lambda trainer, model, _: trainer.fit(model, datamodule=Data()),
        )
        with pytest.raises(SessionError, match=f"with {type(finder).__name__}: search with .*Tuner"):
            framework_training(hooks).run(main)


def progress():
    from lightning.pytorch.callbacks import TQDMProgressBar

    return [TQDMProgressBar()]


def cool(net):
    net.temperature = 0.5**net.current_epoch


def decay(net):
    net.lr_schedulers().step()
    for group in net.optimizers().param_groups:
        group["lr"] *= 0.8


def clip(net):
    with torch.no_grad():
        for weight in net.parameters():
            weight.clamp_(-0.2, 0.2)


@pytest.mark.parametrize(
    "arguments",
    [
        {"begins_epoch": cool},
        {"begins_epoch": decay},
        {"own": progress, "enable_progress_bar": True},
        {"own": accumulation},
        {"own": accumulation, "max_epochs": -1, "max_steps": 20},
        {"own": averaging},
    ],
    ids=[
        "temperature",
        "learning rate",
        "progress bar",
        "accumulation",
        "accumulation to a step",
        "averaging",
    ],
)
def test_what_is_set_at_the_beginning_of_an_epoch_is_set_again(compare, arguments):
    compare(*lightning_main(**arguments), [15])


def exporting():
    import lightning

    class Export(lightning.Callback):
        def on_train_end(self, trainer, pl_module):
            for parameter in pl_module.parameters():
                parameter.data.mul_(0.5)

    return [Export()]


@pytest.mark.parametrize("own", [exporting, averaging])
def test_the_last_state_is_what_is_left_at_the_end_of_the_training(framework_training, courier, own):
    """Also if there was a validation after the last step."""
    main, hooks = lightning_main(own=own)
    training = framework_training(hooks)
    assert training.run(main)
    checkpoint = Checkpoint(courier.carry(courier.final()["step"]))
    model = torch.nn.ModuleDict({"net": net()})
    model.load_state_dict({name: checkpoint.item(f"model/{name}") for name in model.state_dict()})
    assert weights_sha256(model) == training.result[0]


def test_weights_that_the_repeated_beginning_of_an_epoch_changes_are_warned_of(
    framework_training, courier, caplog
):
    main, hooks = lightning_main(begins_epoch=clip)
    training = framework_training(hooks)
    assert not training.run(main, drain_at=15)
    assert "a second time" not in caplog.text
    assert training.run(main, restore=courier.carry(courier.drained()["step"]))
    (told,) = [each.message for each in caplog.records if "a second time" in each.message]
    assert "and changed net.0.weight a second time" in told


def test_callbacks_of_lightning_that_cannot_be_resumed_are_refused_by_name(framework_training):
    from lightning.pytorch.callbacks import BaseFinetuning, EMAWeightAveraging

    from cloudspot.train.errors import SessionError

    class Fine(BaseFinetuning):
        def freeze_before_training(self, model):
            self.freeze(model.net[0])

        def finetune_function(self, model, epoch, optimizer):
            pass

    for callback in (Fine(), EMAWeightAveraging(decay=0.9)):
        main, hooks = lightning_main(own=lambda callback=callback: [callback])
        with pytest.raises(SessionError, match=f"cannot resume {type(callback).__name__}: "):
            framework_training(hooks).run(main)


@pytest.mark.parametrize("mode", ["max_size_cycle", "min_size"])
def test_loaders_of_different_lengths_are_refused_unless_they_end_together(compare, mode):
    from lightning.pytorch.utilities import CombinedLoader

    from cloudspot.train.errors import SessionError

    def loaders():
        long, short = DataLoader(Noisy(), 4, shuffle=True), DataLoader(Noisy(), 11, shuffle=True)
        return CombinedLoader([long, short], mode)

    main, hooks = lightning_main(loaders=loaders)
    if mode == "min_size":
        compare(main, hooks, [3])
        return
    with pytest.raises(SessionError, match="must all have the same length"):
        compare(main, hooks, [])


def test_ranks_wait_for_one_that_works_at_the_end_of_the_training(courier):
    courier.run_ranks(EXPORTING, num_ranks=2, environment=courier.begin())
    assert courier.final()["left_early"]
    assert all(handoff.ended_loop_path(courier.handoff, rank).exists() for rank in range(2))


def test_a_stream_need_not_know_its_length(compare):
    class Endless(Stream):
        def __len__(self):
            raise NotImplementedError

    compare(*lightning_main(data=Endless), [3])


def test_means_of_a_resumed_epoch_are_told_from_whole_ones(framework_training, courier, caplog):
    main, hooks = lightning_main(logs_means=True)
    training = framework_training(hooks)
    assert not training.run(main, drain_at=4)
    step = courier.drained()["step"]
    assert training.run(main, restore=courier.carry(step))
    (told,) = [each.message for each in caplog.records if "leave out" in each.message]
    assert told == (
        f"the means of this epoch leave out its first {step} batches, from before the resume: loss"
    )


def test_another_number_of_ranks_is_refused(framework_training, courier):
    from cloudspot.train.errors import SessionError

    main, hooks = lightning_main()
    training = framework_training(hooks)
    assert not training.run(main, drain_at=4)
    restore = courier.carry(courier.drained()["step"])
    manifest = restore / handoff.RESTORE_MANIFEST
    saved = json.loads(manifest.read_text())
    first = saved["parts"][0]
    state = first["seal"]["rank_states"]["0"]
    second = {
        **first,
        "rank": 1,
        "seal": {**first["seal"], "rank": 1, "items": [], "rank_states": {"1": state}},
    }
    for part in (first, second):
        part["seal"]["world_size"] = 2
    handoff.write_json(manifest, {**saved, "world_size": 2, "parts": [first, second]})
    with pytest.raises(SessionError, match="was saved by a number of ranks other than 1"):
        training.run(main, restore=restore)


# --- Accelerate --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("every", "data", "is_stateful"),
    [(1, Noisy, False), (4, Noisy, False), (1, Stream, False), (1, Noisy, True)],
)
def test_prepared_loaders_resume_at_the_very_batch(compare, every, data, is_stateful):
    import accelerate

    from cloudspot.train import accelerate as spot_accelerate

    class Loop:
        def tick(self):
            pass

    def main():
        accelerate.state.AcceleratorState._reset_state(True)
        torch.manual_seed(0)
        loading = accelerate.DataLoaderConfiguration(use_stateful_dataloader=is_stateful)
        accelerator = accelerate.Accelerator(
            cpu=True, gradient_accumulation_steps=every, dataloader_config=loading
        )
        model = net()
        optimizer = torch.optim.AdamW(model.parameters(), 0.05)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.9)
        loader = DataLoader(data(), 4, shuffle=data is Noisy)
        model, optimizer, scheduler, loader = accelerator.prepare(model, optimizer, scheduler, loader)
        run = spot_accelerate.session(accelerator)
        for _ in run.epochs(3):
            for inputs, targets in run.batches(loader):
                with accelerator.accumulate(model):
                    accelerator.backward((model(inputs) - targets).square().mean())
                    optimizer.step()
                    scheduler.step()
                    optimizer.zero_grad()
                Loop().tick()
            torch.rand(1)
        return weights_sha256(model)

    compare(main, {Loop: ("tick",)}, [1, 11, 12, 20])


def test_a_seed_that_accelerates_sampler_has_drawn_comes_back(caplog):
    """In a script that sets no seed, each process draws another one."""
    from accelerate.data_loader import prepare_data_loader

    def feed(seed):
        torch.manual_seed(seed)
        loader = DataLoader(range(NUM_SAMPLES), 4, shuffle=True)
        prepared = prepare_data_loader(
            loader, num_processes=1, put_on_device=False, use_seedable_sampler=True
        )
        return ResumableBatches(prepared, epochs=2, world_size=1)

    def fetch(feed, count):
        return [feed.fetch()[0].tolist() for _ in range(count)]

    batches = fetch(feed(1), 22)
    first, second = feed(1), feed(2)
    fetch(first, 5)
    position, rank_position = first.take()
    second.resume(position, rank_position, world_size=1)
    assert fetch(second, 17) == batches[5:]
    assert "earlier version" not in caplog.text
    # A version before this did not save it: then the script's own counts.
    assert rank_position["generators"].pop() != 0
    third = feed(1)
    third.resume(position, rank_position, world_size=1)
    assert fetch(third, 17) == batches[5:]
    replayed, resumed = (ReplayedLoader(feed(1)._loader, ahead=1) for _ in range(2))
    iterator = iter(replayed)
    for _ in range(5):
        next(iterator)
    state = replayed.state_dict()
    assert state["generators"].pop() != 0
    resumed.load_state_dict(state)
    assert [each.tolist() for each in resumed] == [each.tolist() for each in iterator]
    assert "earlier version" in caplog.text


def test_a_shuffled_loader_that_accelerate_divides_resumes_in_its_order():
    """With several processes its sampler has a generator, deep within; resumed epochs had another order."""
    from accelerate.data_loader import prepare_data_loader

    def feed():
        torch.manual_seed(3)
        loader = DataLoader(range(NUM_SAMPLES), 4, shuffle=True)
        divided = prepare_data_loader(loader, num_processes=2, process_index=1, put_on_device=False)
        return ResumableBatches(divided, epochs=3, world_size=2, rank=1)

    def fetch(feed, count):
        return [feed.fetch()[0].tolist() for _ in range(count)]

    undisturbed = feed()
    batches = fetch(undisturbed, 18)
    assert undisturbed.fetch() is None
    for num_fetched in (1, 6, 8, 13):
        first, second = feed(), feed()
        fetch(first, num_fetched)
        position, rank_position = first.take()
        second.resume(position, rank_position, world_size=2)
        assert fetch(second, 18 - num_fetched) == batches[num_fetched:]


@pytest.mark.parametrize(
    ("options", "seeds", "is_known"),
    [
        ({"rng_types": ["generator"]}, (), True),
        ({}, (), False),
        ({"use_seedable_sampler": True, "data_seed": 7}, (), False),
        ({"use_seedable_sampler": True, "data_seed": 7}, (7,), True),
    ],
)
def test_a_ranks_share_of_a_shuffled_loader_is_known_to_others_where_accelerate_makes_them_agree(
    options, seeds, is_known
):
    from accelerate.data_loader import prepare_data_loader

    loader = DataLoader(range(NUM_SAMPLES), 4, shuffle=True)
    divided = prepare_data_loader(loader, num_processes=2, process_index=1, put_on_device=False, **options)
    found = own_order(ReplayedLoader(divided), seeds=seeds)
    assert (found is None) is is_known


def test_an_accelerator_that_knows_of_one_process_of_two_is_refused(monkeypatch):
    """On CPUs, ``accelerate launch`` starts two, and each trains for itself."""
    import accelerate

    from cloudspot.train import accelerate as spot_accelerate
    from cloudspot.train.distributed import World
    from cloudspot.train.errors import SessionError

    accelerator = accelerate.Accelerator(cpu=True)
    with pytest.raises(SessionError, match=r"call accelerator.prepare\(\) before"):
        spot_accelerate.session(accelerator)
    accelerator.prepare(net())
    monkeypatch.setattr(spot_accelerate, "current_world", lambda: World(0, 2, 0, 2))
    with pytest.raises(SessionError, match="2 processes were started, but the accelerator counts 1"):
        spot_accelerate.session(accelerator)
