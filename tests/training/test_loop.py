"""The training loop: schedule, noise, clipping, resuming bit by bit."""

from dataclasses import replace
from itertools import count
from types import SimpleNamespace

import pytest
import torch
from helpers.training import CONFIG
from safetensors.torch import load_file
from torch.nn.utils import get_total_norm
from torch.optim.optimizer import register_optimizer_step_pre_hook

from treespec.errors import TreespecError
from treespec.training import TrainingConfig, loop, train
from treespec.training.data import Batch
from treespec.training.loop import learning_rate, with_noise


def test_the_rate_warms_up_and_falls_to_zero():
    config = TrainingConfig(learning_rate=1.0, warmup_steps=3)
    assert [learning_rate(config, step, 0.0) for step in range(5)] == pytest.approx([0.25, 0.5, 0.75, 1, 1])
    assert learning_rate(config, 100, 0.5) == pytest.approx(0.5)
    assert learning_rate(config, 100, 1.0) == pytest.approx(0)


def test_noise_is_in_units_of_the_states():
    states = torch.randn(2, 50, 64, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 100]).view(2, 1, 1)
    batch = Batch(*[torch.zeros(2, 50)] * 6)._replace(states=states)
    noisy = with_noise(batch, 0.1, torch.Generator().manual_seed(1)).states - states
    assert noisy.std((1, 2)).tolist() == pytest.approx([0.1, 10], rel=0.1)
    assert with_noise(batch, 0.0, torch.Generator()) is batch


class KilledError(RuntimeError):
    pass


def test_a_killed_run_is_resumed_bit_by_bit(trained, target, texts, tmp_path):
    def kill(run):
        if run.progress.step == 10:  # Between two saved states, the first evaluation is in the past.
            raise KilledError

    folder, features = tmp_path / "run", trained.folder / "features"
    with pytest.raises(KilledError):
        train(target, texts, folder, trained.config, features=features, on_step=kill)
    result = train(target, texts, folder, trained.config, features=features, name="tiny", dtype=torch.float32)
    assert result.evaluation == trained.result.evaluation
    losses, expected = ([line.get("loss") for line in r.progress.log] for r in (result, trained.result))
    assert losses == expected
    own, whole = (load_file(r.folder / "model.safetensors") for r in (result, trained.result))
    assert own.keys() == whole.keys()
    assert all(torch.equal(own[name], whole[name]) for name in own)


def test_gradients_are_clipped(target, texts, tmp_path, monkeypatch):
    norms = []

    def measure(optimizer, *_):
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        norms.append(float(get_total_norm([weight.grad for weight in weights if weight.grad is not None])))

    hook = register_optimizer_step_pre_hook(measure)
    for clip in (1e6, 1e-4):
        monkeypatch.setattr(loop, "MAX_GRADIENT_NORM", clip)
        train(target, texts, tmp_path / str(clip), replace(CONFIG, num_steps=1), features=tmp_path)
    hook.remove()
    assert norms[0] > 1e-2
    assert norms[1] == pytest.approx(1e-4, rel=1e-2)


def test_the_total_variation_counts_from_its_start_on(target, texts, tmp_path):
    def losses(weight):
        seen, config = [], replace(CONFIG, num_steps=4, tv_weight=weight, tv_start=0.5)
        see = {"on_step": lambda run: seen.append(run.progress.losses[-1])}
        train(target, texts, tmp_path / str(weight), config, features=tmp_path, **see)
        return seen

    without, with_it = losses(0.0), losses(1.0)
    assert without[:2] == with_it[:2]
    assert all(one != other for one, other in zip(without[2:], with_it[2:], strict=True))


def test_a_run_that_diverges_stops(target, texts, tmp_path):
    with pytest.raises(TreespecError, match="lower the learning rate"):
        train(target, texts, tmp_path, replace(CONFIG, learning_rate=1e30, warmup_steps=0))
    assert not (tmp_path / "drafter").exists()


@pytest.mark.parametrize("trained", ["eagle3"], indirect=True)
def test_bfloat16_and_float32_learn_alike(trained, target, texts, tmp_path):
    result = train(target, texts, tmp_path, replace(trained.config, is_mixed=True))
    assert result.evaluation.overlap == pytest.approx(trained.result.evaluation.overlap, abs=0.02)


def test_minutes_end_a_run(target, texts, tmp_path, monkeypatch):
    """By a clock that shows a quarter of a second more whenever it is read: once per step."""
    ticks = count()
    monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=lambda: next(ticks) / 4))
    result = train(target, texts, tmp_path, replace(CONFIG, num_steps=None, minutes=0.025))
    assert (result.progress.step, result.progress.seconds) == (6, 1.5)
