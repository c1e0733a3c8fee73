"""Training on a tiny target: it learns, goes on after a kill, and what it measures is what its files then do."""

import json
import math
from collections import Counter
from dataclasses import replace

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch.nn.utils import get_total_norm
from torch.optim.optimizer import register_optimizer_step_pre_hook
from training_texts import LENGTH, VOCAB, write
from transformers import AutoModelForCausalLM

import treespec
from treespec.errors import CheckpointError, ConfigError, TreespecError
from treespec.policies import Chain
from treespec.training import TrainingConfig, train
from treespec.training.data import FeatureSet
from treespec.training.evaluate import play_rounds
from treespec.training.features import FeatureReader
from treespec.training.sampler import Split
from treespec.training.text.texts import Texts

CONFIG = TrainingConfig(
    num_steps=16,
    draft_vocab_size=40,
    num_depths=3,
    num_anchors=16,
    markov_rank=8,
    num_held_out=8,
    warmup_steps=3,
    eval_every=6,
    save_every=7,
    learning_rate=5e-3,
    is_mixed=False,
)


class Trained:
    """A run of one kind, whole."""

    def __init__(self, kind, target, texts, folder):
        num_layers = 2 if kind == "draft_model" else None
        self.config = replace(CONFIG, kind=kind, num_layers=num_layers)
        self.folder, self.evaluations, self.runs = folder, [], []
        reports = {"on_evaluation": self.evaluations.append, "on_step": self.see}
        self.result = train(target, texts, folder, self.config, name="tiny", dtype=torch.float32, **reports)

    def see(self, run):
        self.runs = [run]


@pytest.fixture(scope="module", params=["eagle3", "dflash", "draft_model"])
def trained(request, target, texts, tmp_path_factory):
    return Trained(request.param, target, texts, tmp_path_factory.mktemp(request.param))


def test_held_out_texts_are_drafted_better(trained):
    first, *_, last = trained.evaluations
    assert len(trained.evaluations) == 3
    assert last.overlap[0] > first.overlap[0] + 0.01
    assert last.num_greedy_positions > 100


def test_rounds_played_along_texts_are_what_the_saved_drafter_does(trained, target, tmp_path):
    written = write(target, 4, seed=5)
    reader = FeatureReader(target, (0, 1, 2), 8, dtype=torch.float32)
    batch = FeatureSet(written, reader, tmp_path, LENGTH, 0, torch.device("cpu")).batch(range(4))
    judged = trained.runs[0].objective.evaluate(batch)
    drafter = load(trained, target)
    for row, text in enumerate(written.tokens.split(LENGTH)):
        accepted = play_rounds(judged.ranks[row, 2:], judged.is_evaluated[row, 2:]).tolist()
        speculation = treespec.TreeSpeculation(drafter, tree=Chain(3))
        new = sum(accepted) + len(accepted)
        target.generate(text[None, :3], max_new_tokens=new, do_sample=False, custom_generate=speculation)
        assert speculation.stats.acceptance_histogram == Counter(accepted)


def test_overlaps_are_those_of_the_distributions_at_the_drafts_places(trained, target, tmp_path):
    written = write(target, 2, seed=6)
    reader = FeatureReader(target, (0, 1, 2), VOCAB, dtype=torch.float32)
    batch = FeatureSet(written, reader, tmp_path, LENGTH, 0, torch.device("cpu")).batch(range(2))
    objective = trained.runs[0].objective
    judged, learner = objective.evaluate(batch), objective.learner
    with torch.no_grad():
        distributions = target(batch.tokens).logits.softmax(-1)[..., learner.target_ids]
        for depth, draft in enumerate(learner.drafts(batch, None)):
            probs = (draft.outputs @ learner.output_weight.T).softmax(-1)
            expected = torch.minimum(probs, distributions[draft.texts, draft.anchors + depth]).sum(-1)
            found = judged.overlaps[draft.texts, draft.anchors, depth]
            torch.testing.assert_close(found, expected, atol=2e-3, rtol=0)
        assert judged.is_evaluated.sum() == sum(len(draft.texts) for draft in learner.drafts(batch, None))


def load(trained, target):
    """The drafter from its files."""
    if trained.config.kind != "draft_model":
        return treespec.load_drafter(trained.result.folder, target)
    model = AutoModelForCausalLM.from_pretrained(trained.result.folder)
    assert model.config.num_hidden_layers == 2
    return model.eval()


class KilledError(RuntimeError):
    pass


@pytest.mark.parametrize("step", [3, 14])
def test_a_killed_run_goes_on_bit_by_bit(trained, target, texts, tmp_path, step):
    def kill(run):
        if run.progress.step == step:
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


def test_a_run_can_begin_with_anothers_weights(trained, target, texts, tmp_path):
    features = trained.folder / "features"
    barely = replace(trained.config, start=str(trained.folder), num_steps=1, learning_rate=1e-12)
    result = train(target, texts, tmp_path / "on", barely, features=features)
    assert result.evaluation == trained.result.evaluation
    assert result.progress.step == 1
    card = (result.folder / "README.md").read_text()
    assert f"Begins with the weights of another run, `{trained.folder.name}`." in card
    assert str(trained.folder) not in card + (tmp_path / "on" / "evaluation.json").read_text()
    larger = replace(barely, num_layers=(trained.config.num_layers or trained.config.layers) + 1)
    with pytest.raises(CheckpointError, match="lacks the tensors"):
        train(target, texts, tmp_path / "larger", larger, features=features)
    with pytest.raises(CheckpointError, match="there is no file"):
        train(target, texts, tmp_path / "none", replace(barely, start=str(tmp_path)), features=features)


def test_weights_of_another_size_are_named(target, texts, tmp_path):
    small = replace(CONFIG, kind="dflash", num_steps=1)
    train(target, texts, tmp_path / "small", small)
    wide = replace(small, markov_rank=16, start=str(tmp_path / "small"))
    with pytest.raises(CheckpointError, match=r"other sizes: .*markov"):
        train(target, texts, tmp_path / "wide", wide, features=tmp_path / "small" / "features")
    with pytest.raises(ConfigError, match="is_head_frozen must be true"):
        replace(small, start="there", is_head_frozen=False)


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ({"kind": "eagle3", "num_layers": 2}, {"num_layers": 1}, r"has more: .*layers\.1"),
        ({"kind": "dflash"}, {"markov_rank": 0}, r"has more: .*markov"),
        ({"kind": "draft_model", "num_layers": 2}, {"num_layers": 1}, r"has more: .*layers\.1"),
        ({"kind": "eagle3", "hidden_layers": (0, 1, 2)}, {"hidden_layers": (2, 1, 0)}, r"\[0, 1, 2\].*\[2, 1, 0\]"),
        ({"kind": "dflash", "mask_token": 5}, {"mask_token": 6}, "'mask_token': 5.*'mask_token': 6"),
    ],
)
def test_weights_that_another_run_cannot_use_are_named(target, texts, tmp_path, first, second, words):
    config = replace(CONFIG, num_steps=1, **first)
    train(target, texts, tmp_path / "first", config)
    with pytest.raises(CheckpointError, match=words):
        train(target, texts, tmp_path / "second", replace(config, start=str(tmp_path / "first"), **second))


def test_frozen_rows_are_the_targets_and_in_a_draft_models_file_alone(trained, target):
    files = load_file(trained.result.folder / "model.safetensors")
    if trained.config.kind == "draft_model":
        assert torch.equal(files["lm_head.weight"], target.lm_head.weight)
        return
    assert "lm_head.weight" not in files
    head = treespec.load_drafter(trained.result.folder, target).head
    assert torch.equal(head.lm_head.weight, target.lm_head.weight[head.target_ids])


def test_another_run_in_the_folder_is_refused(trained, target, texts):
    with pytest.raises(CheckpointError, match="is of a run with other settings"):
        train(target, texts, trained.folder, replace(trained.config, learning_rate=1e-3))


def test_a_run_of_before_a_setting_was_there_goes_on(trained, target, texts, tmp_path):
    """A state file whose settings lack one that has its default now."""
    path = tmp_path / "state.safetensors"
    with safe_open(trained.folder / path.name, "pt") as file:
        about = file.metadata()
    run = json.loads(about["run"])
    del run["noise"], run["reads"]
    save_file(load_file(trained.folder / path.name), path, metadata=about | {"run": json.dumps(run)})
    features = trained.folder / "features"
    assert train(target, texts, tmp_path, trained.config, features=features).progress.step == CONFIG.num_steps
    with pytest.raises(CheckpointError):
        train(target, texts, tmp_path, replace(trained.config, noise=0.1), features=features)


def test_features_are_read_again_where_the_bound_leaves_no_room(trained, target, texts, tmp_path):
    result = train(target, texts, tmp_path, replace(trained.config, max_cache_gb=0.0))
    assert not list((tmp_path / "features").glob("*"))
    assert result.evaluation.overlap == pytest.approx(trained.result.evaluation.overlap, abs=1e-3)


def test_damaged_features_are_named(trained, target, texts, tmp_path):
    train(target, texts, tmp_path, replace(CONFIG, num_steps=1))
    shard = next((tmp_path / "features").glob("*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match=shard.name):
        train(target, texts, tmp_path, replace(CONFIG, num_steps=1))


def test_a_damaged_state_is_named(target, texts, tmp_path):
    train(target, texts, tmp_path, replace(CONFIG, num_steps=1))
    path = tmp_path / "state.safetensors"
    tensors = load_file(path)
    with safe_open(path, "pt") as file:
        about = file.metadata()
    for damaged in ({"progress": "{"}, {"progress": "[]"}, {"progress": '{"steps": 1}'}, {"run": "none"}):
        save_file(tensors, path, metadata=about | damaged)
        with pytest.raises(CheckpointError, match=r"state\.safetensors does not say how far its run has come"):
            train(target, texts, tmp_path, replace(CONFIG, num_steps=1))
    path.write_bytes(b"not a checkpoint")
    with pytest.raises(CheckpointError, match=r"state\.safetensors"):
        train(target, texts, tmp_path, replace(CONFIG, num_steps=1))


def test_where_nothing_can_be_written_is_named(target, texts, tmp_path):
    def occupy(_):
        (tmp_path / "state.safetensors" / "folder").mkdir(parents=True)

    with pytest.raises(CheckpointError, match=r"state\.safetensors cannot be written"):
        train(target, texts, tmp_path, replace(CONFIG, num_steps=1), on_step=occupy)
    assert not list(tmp_path.rglob("*.partial"))


def test_too_few_texts_are_refused(target, tmp_path):
    with pytest.raises(ConfigError, match="at least 5 texts"):
        train(target, write(target, 3), tmp_path, CONFIG)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kind": "dflash", "mask_token": 10_000}, "mask_token"),
        ({"kind": "draft_model", "num_layers": 4}, "at most the target's 3"),
    ],
)
def test_settings_that_do_not_fit_the_target_are_refused_before_it_reads(target, texts, tmp_path, options, words):
    with pytest.raises(ConfigError, match=words):
        train(target, texts, tmp_path, replace(CONFIG, **options), on_tokens=lambda _: pytest.fail("it reads"))


@pytest.mark.parametrize("kind", ["eagle3", "dflash", "draft_model"])
@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("tokens", lambda tokens: tokens + VOCAB, "another model's"),
        ("tokens", lambda tokens: tokens - VOCAB, "another model's"),
        ("top", lambda top: torch.where(top >= 0, top + VOCAB, top), "another model's"),
        ("top", lambda top: top[:, :0], "probable next tokens"),
        ("lengths", lambda lengths: torch.cat([lengths[1:], lengths[:1] + 1, -torch.ones(1).long()]), "an empty one"),
    ],
)
def test_texts_of_another_model_or_none_are_refused(target, texts, tmp_path, kind, name, change, words):
    changed = texts._replace(**{name: change(getattr(texts, name))})
    with pytest.raises(ConfigError, match=words):
        train(target, changed, tmp_path, replace(CONFIG, kind=kind))


def test_the_cache_can_be_without_bound(target, texts, tmp_path):
    train(target, texts, tmp_path, replace(CONFIG, num_steps=1, max_cache_gb=math.inf))


@pytest.mark.parametrize("kind", ["eagle3", "dflash"])
def test_texts_that_the_target_wrote_no_part_of_are_left_out(target, texts, tmp_path, kind):
    """Long prompts, once cut: of one length, they share batches in which nothing can be learned."""
    top = texts.top.clone()
    top[: len(top) // 2] = -1
    result = train(target, texts._replace(top=top), tmp_path / "half", replace(CONFIG, kind=kind, batch_size=1))
    assert result.progress.num_tokens <= result.progress.step * LENGTH
    with pytest.raises(ConfigError, match="generated no part"):
        train(target, texts._replace(top=torch.full_like(top, -1)), tmp_path / "none", replace(CONFIG, kind=kind))


def test_no_text_is_trained_on_and_held_out_even_once_there_are_more(target, texts, tmp_path):
    """A run that begins with the weights of one on fewer texts is not judged by what that one was taught."""
    reader, half = FeatureReader(target, (0,), 4), len(texts.lengths) // 2
    fewer = Texts(texts.tokens[: half * LENGTH], texts.lengths[:half], texts.top[: half * LENGTH])
    splits = [
        Split.of(FeatureSet(some, reader, tmp_path, LENGTH, 0, torch.device("cpu")), 8) for some in (fewer, texts)
    ]
    for split, count in zip(splits, (half, 2 * half), strict=True):
        assert len(split.held_out) == 8
        assert sorted([*split.train, *split.held_out]) == list(range(count))
    assert not set(splits[0].train) & set(splits[1].held_out)
    cut = FeatureSet(texts, reader, tmp_path, LENGTH - 8, 0, torch.device("cpu"))
    assert Split.of(cut, 8).held_out == splits[1].held_out


def test_gradients_are_no_longer_than_they_may_be(target, texts, tmp_path):
    norms = []

    def measure(optimizer, *_):
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        norms.append(float(get_total_norm([weight.grad for weight in weights if weight.grad is not None])))

    hook = register_optimizer_step_pre_hook(measure)
    for clip in (1e6, 1e-4):
        train(target, texts, tmp_path / str(clip), replace(CONFIG, num_steps=1, clip=clip), features=tmp_path)
    hook.remove()
    assert norms[0] > 1e-2
    assert norms[1] == pytest.approx(1e-4, rel=1e-2)


def test_the_total_variation_counts_from_its_start_on(target, texts, tmp_path):
    losses = {}
    for weight in (0.0, 1.0):
        seen = losses[weight] = []
        config = replace(CONFIG, num_steps=4, tv_weight=weight, tv_start=0.5)
        train(
            target,
            texts,
            tmp_path / str(weight),
            config,
            features=tmp_path,
            on_step=lambda run, seen=seen: seen.append(run.progress.losses[-1]),
        )
    assert losses[0.0][:2] == losses[1.0][:2]
    assert all(plain != variation for plain, variation in zip(losses[0.0][2:], losses[1.0][2:], strict=True))


def test_a_run_that_diverges_stops(target, texts, tmp_path):
    with pytest.raises(TreespecError, match="lower the learning rate"):
        train(target, texts, tmp_path, replace(CONFIG, learning_rate=1e30, warmup_steps=0))
    assert not (tmp_path / "drafter").exists()


def test_bfloat16_and_float32_learn_alike(trained, target, texts, tmp_path):
    result = train(target, texts, tmp_path, replace(trained.config, is_mixed=True))
    assert result.evaluation.overlap == pytest.approx(trained.result.evaluation.overlap, abs=0.02)


def test_minutes_end_a_run(target, texts, tmp_path):
    result = train(target, texts, tmp_path, replace(CONFIG, num_steps=None, minutes=0.01))
    assert result.progress.step > 0
    assert 0.6 <= result.progress.seconds < 3
