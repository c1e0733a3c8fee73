"""Drafts of the checkpoint's own MTP layers: distributions equal a slow plain reading of the files, chains those of
transformers' own reading, and the output is the target's."""

import shutil
from typing import Any

import pytest
import torch
from helpers import zoo
from helpers.doc_snippets import run_snippet
from helpers.head_runs import check_distributions, left_padded, recording, run, with_cache
from helpers.mtp_files import PUBLISHED, PlainMtp, write
from helpers.tiny import identical
from safetensors.torch import load_file, save_file
from transformers import modeling_layers

from benchmarks.joint_distribution.cases import VOCAB_SIZE, WARPED
from benchmarks.joint_distribution.run import Case, run_case, tiny_models
from treespec import BestFirst, Chain, KAry, TreeSpeculation, load_drafter, load_mtp
from treespec.errors import CheckpointError
from treespec.heads import Mtp
from treespec.heads.mtp.module import unroll


def recorded(made, **options):
    loaded = load_mtp(made.target, **options)
    return recording(Mtp)(loaded.head, loaded.hidden_layers, options.get("max_length"))


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """Checkpoints by published and number of layers, each written once."""
    known = {}

    def checkpoint(name, num_layers=1):
        if (name, num_layers) not in known:
            known[name, num_layers] = write(tmp_path_factory.mktemp(name), name, num_layers)
        return known[name, num_layers]

    return checkpoint


MtpModel: Any = getattr(modeling_layers, "MtpModel", None)
with_transformers_own = pytest.mark.skipif(MtpModel is None, reason="transformers has MTP layers of its own since 5.23")
COUNTS = [(name, 1) for name in PUBLISHED] + [("deepseek_v3", 3), ("qwen3_5", 2), ("mimo", 2)]


@pytest.mark.parametrize(("name", "num_layers"), COUNTS)
def test_distributions_equal_the_plain_reading(checkpoints, name, num_layers):
    made = checkpoints(name, num_layers)
    drafter = recorded(made)
    run(made.target, drafter, left_padded([9, 4]), 6, do_sample=True, tree=KAry((2, 2, 1, 1)), top_k=0)
    assert check_distributions(made.target, drafter, PlainMtp(made)) > 40


@with_transformers_own
@pytest.mark.parametrize(
    ("name", "num_layers", "ignored"),
    [
        ("deepseek_v3", 3, r"model\.layers\.[2-9].*"),
        ("glm4_moe", 2, r"model\.layers\.[2-9].*"),
        ("mellum", 1, r"^mtp.*"),
    ],
)
def test_chains_are_those_of_use_mtp(checkpoints, monkeypatch, name, num_layers, ignored):
    made = checkpoints(name, num_layers)
    monkeypatch.setattr(made.target, "_keys_to_ignore_on_load_unexpected", {ignored})
    theirs = []
    original = MtpModel.forward

    def kept(*args, **kwargs):
        found = original(*args, **kwargs)
        theirs.append(found[0][0].tolist())
        return found

    monkeypatch.setattr(MtpModel, "forward", kept)
    inputs = left_padded([9])
    options = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None}
    plain = made.target.generate(**inputs, **options, use_mtp=True)
    drafter = recorded(made)
    out, _ = run(made.target, drafter, inputs, 12, tree=Chain(num_layers), eos_token_id=None)
    assert out.equal(plain)
    ours = [step.trees.trees[0].tokens[1:].tolist() for step in drafter.steps]
    # The first step knows the prompt only here, and the token after it too there.
    ours = [chain for chain in ours if len(chain) == num_layers]
    assert len(ours) > 6
    assert sum(chain in theirs for chain in ours) >= len(ours) - 1


GREEDY = [
    ("deepseek_v3", BestFirst(10)),
    ("deepseek_v3", Chain(3)),
    ("qwen3_5", KAry((2, 2, 1))),
    ("nemotron_h", "auto"),
]


@pytest.mark.parametrize(("name", "policy"), GREEDY, ids=["best first", "chain", "tree", "auto"])
def test_greedy_output_is_plain_output(checkpoints, name, policy):
    target = checkpoints(name).target
    speculation = TreeSpeculation(load_drafter("mtp", target), tree=policy)
    stats = identical(target, left_padded([9, 1, 5, 2]), speculation)
    assert policy == "auto" or stats.num_draft_tokens > 0


@pytest.mark.parametrize("length", [1, 3])
def test_texts_shorter_than_there_are_layers(checkpoints, length):
    made = checkpoints("deepseek_v3", 3)
    drafter, options = recorded(made), {"max_new_tokens": 9, "eos_token_id": None}
    identical(made.target, left_padded([length]), TreeSpeculation(drafter, tree=KAry((2, 1, 1, 1))), **options)
    # Before a text is longer than there are layers, some of them have nothing to read.
    drafter.steps = [step for step in drafter.steps if len(step.texts[0]) > 3]
    assert check_distributions(made.target, drafter, PlainMtp(made)) > 10


def test_a_cache_that_held_the_first_tokens_and_prompts_that_are_read_in_parts(checkpoints, monkeypatch):
    made = checkpoints("deepseek_v3", 3)
    drafter, inputs = recorded(made), with_cache(made.target, zoo.prompts(1, 12))
    run(made.target, drafter, inputs, 6, tree=KAry((2, 1, 1)), eos_token_id=None)
    assert check_distributions(made.target, drafter, PlainMtp(made), first=6) > 15
    monkeypatch.setattr("treespec.heads.drafting.unread_features.MAX_COLUMNS", 5)
    run(made.target, drafter, left_padded([14, 5, 8]), 5, tree=KAry((2, 1, 1)), eos_token_id=None)
    assert check_distributions(made.target, drafter, PlainMtp(made)) > 20


JOINT = {
    "deepseek, tree of two layers": ("deepseek_v3", 2, BestFirst(6)),
    "qwen, tree": ("qwen3_5", 1, KAry((2, 1))),
}


@pytest.mark.parametrize("name", ["deepseek, tree of two layers", pytest.param("qwen, tree", marks=pytest.mark.slow)])
def test_joint_distribution_is_the_targets(tmp_path, monkeypatch, name):
    """Three sampled tokens of a vocabulary of eight."""
    monkeypatch.setattr(zoo, "VOCAB_SIZE", VOCAB_SIZE)
    published, num_layers, policy = JOINT[name]
    made = write(tmp_path, published, num_layers, vocab_size=VOCAB_SIZE)
    made.target.generation_config.eos_token_id = None
    models = tiny_models()._replace(target=made.target)
    case = Case("traversal", policy, name, WARPED, lambda models: load_mtp(models.target))
    result = run_case(case, models, num_batches=1, num_rows=1000)
    assert result["p"] > 1e-3
    assert result["block_efficiency"] > 1.05


@pytest.mark.parametrize(
    ("draft_vocab", "do_sample"), [(40, False), (list(range(5, 90, 3)), True)], ids=["first", "ids"]
)
def test_a_part_of_the_vocabulary_is_drafted(checkpoints, draft_vocab, do_sample):
    target = checkpoints("glm4_moe").target
    drafter = recorded(checkpoints("glm4_moe"), draft_vocab=draft_vocab)
    inputs = left_padded([9, 5])
    out, _ = run(target, drafter, inputs, 12, do_sample, tree=BestFirst(8), top_k=0 if do_sample else None)
    if not do_sample:
        assert out.equal(target.generate(**inputs, max_new_tokens=12, do_sample=False))
    drafted = {token for step in drafter.steps for tree in step.trees.trees for token in tree.tokens[1:].tolist()}
    assert drafted <= set(range(40) if isinstance(draft_vocab, int) else draft_vocab)
    assert len(drafted) > 5
    assert drafter.num_weights < load_mtp(target).num_weights


def test_a_damaged_draft_vocabulary_is_named(checkpoints, tmp_path):
    made = checkpoints("mimo")
    folder = shutil.copytree(made.target.config.name_or_path, tmp_path / "copy")
    (folder / "draft_vocab.json").write_text("[7, 5, 9]")
    assert load_mtp(made.target, folder).head.target_ids.tolist() == [7, 5, 9]
    assert len(load_mtp(made.target, folder, draft_vocab=40).head.target_ids) == 40
    for content in ('"all"', "[]", "[5, 5]", "[1e3]", "[100000]", "[1", "{}"):
        (folder / "draft_vocab.json").write_text(content)
        with pytest.raises(CheckpointError, match=r"draft_vocab\.json"):
            load_drafter(folder, made.target)


@pytest.mark.parametrize("name", ["mimo", "qwen3_5"])
def test_layers_can_read_states_before_the_last_norm(tmp_path, name):
    """A norm of these states undoes their length, so that they are had from the normed ones."""
    target = write(tmp_path, name, 2).target
    generator = torch.Generator().manual_seed(0)

    def uneven(weight):
        return weight + torch.rand(weight.shape, generator=generator)

    weights = load_file(tmp_path / "model.safetensors")
    norms = {
        key: uneven(weight)
        for key, weight in weights.items()
        if key.endswith(("final_layernorm.weight", "mtp.norm.weight"))
    }
    save_file(weights | norms, tmp_path / "model.safetensors", {"format": "pt"})
    last = target.get_decoder().norm
    last.weight.data = uneven(last.weight.data)
    drafter = load_mtp(target, is_target_normed=False, is_own_normed=False)
    head, seen = drafter.head, {}
    for where, norm in (("target", last), *enumerate(layer.norm for layer in head.layers)):
        norm.register_forward_hook(lambda _, given, out, where=where: seen.update({where: (given[0], out)}))
    assert identical(target, left_padded([9, 5]), TreeSpeculation(drafter, tree=6)).num_draft_tokens > 0
    for where, (before, after) in seen.items():
        read = head.scales.before_targets(after) if where == "target" else head.scales.before_own(after, where)
        reader = head.layers[0].hidden_norm
        torch.testing.assert_close(reader(read), reader(before), atol=2e-4, rtol=1e-3)
        assert not torch.allclose(reader(after), reader(before), atol=1e-2)


def test_layers_run_in_their_own_dtype(tmp_path):
    target, inputs = write(tmp_path, "mimo").target, left_padded([6, 3])
    drafter = load_mtp(target)
    target.to(torch.bfloat16)
    drafter.head.layers.to(torch.float32)
    assert identical(target, inputs, TreeSpeculation(drafter, tree=6), max_new_tokens=8).num_draft_tokens > 0
    assert run(target, drafter, inputs, 8, do_sample=True, tree=KAry((2, 1)))[1].num_draft_tokens > 0


def test_the_snippet_of_the_docs_runs(capsys):
    names = run_snippet("MTP layers", page="heads.md")
    assert "\nqwen " in capsys.readouterr().out
    assert names["speculation"].stats.num_draft_tokens > 0


def test_unrolled_training_is_drafting(checkpoints):
    """Step i at t gives what a draft of the true tokens gives at depth i."""
    made = checkpoints("mimo")
    head, text = load_mtp(made.target).head, zoo.prompts(1, 9)
    with torch.no_grad():
        states = made.target(text, output_hidden_states=True).hidden_states[-1]
        steps = unroll(head, text[:, 1:], states[:, :-1], 3)
        tokens = text[0].tolist()
        for step, outputs in enumerate(steps):
            assert outputs.shape[1] == 8 - step
            for column in range(8 - step):
                path = tokens[column + 2 : column + 2 + step]
                plain = PlainMtp(made).logits(states[0, : column + 1], tokens[: column + 2], path)
                torch.testing.assert_close(head.read(outputs)[0, column].double(), plain, atol=2e-5, rtol=1e-4)
