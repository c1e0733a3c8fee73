"""EAGLE-3 drafts: laws equal to a slow plain reading of the files, output equal to the target's own."""

import re
from pathlib import Path

import pytest
import torch
from eagle_files import SAFEAILAB, SPECULATORS, PlainEagle, random_tensors, shape, write
from head_runs import Watched, check_laws, left_padded, run
from tiny import prompt, tiny_llama
from transformers import DynamicCache, LogitsProcessor, LogitsProcessorList

from benchmarks.joint_law import Case, run_case, tiny_models
from benchmarks.joint_law_cases import PLAIN, VOCAB_SIZE, WARPED
from treespec import BestFirst, Chain, KAry, Merge, Paths, TokenRecycling, load_drafter
from treespec.drafters import Eagle3
from treespec.policies import SpecExec, StochasticBeam

LAYERS = (1, 2, 0)
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


@pytest.fixture(scope="module")
def target():
    return tiny_llama(num_layers=3)


class WatchedEagle(Watched, Eagle3):
    """Keeps what it proposed."""


def make(folder, target, made, format_name=SPECULATORS, seed=0, policy=None, **options):
    tensors = random_tensors(made, seed)
    loaded = load_drafter(write(folder, made, tensors, format_name), target, hidden_layers=LAYERS[: made["features"]])
    plain = PlainEagle(made, tensors, target.get_input_embeddings().weight)
    return WatchedEagle(loaded.head, loaded.hidden_layers, policy, **options), plain


HEADS = {
    "safeailab": (SAFEAILAB, shape(hidden=32)),
    "safeailab with an embedding": (SAFEAILAB, shape(extras=("embedding",), draft_vocab=64)),
    "speculators": (SPECULATORS, shape(hidden=32, flags={"norm_before_residual": True, "norm_before_fc": True})),
    "eagle 3.1": (SPECULATORS, shape(hidden=32, features=2, flags={"fc_norm": True, "norm_output": True})),
    "two layers of qwen3": (SPECULATORS, shape(hidden=32, layers=2, extras=("head_norms", "biases"), key_heads=4)),
    "window": (
        SPECULATORS,
        shape(hidden=32, key_heads=1, llama={"layer_types": ["sliding_attention"], "sliding_window": 4}),
    ),
}


@pytest.mark.parametrize("do_sample", [False, True], ids=["greedy", "sampled"])
@pytest.mark.parametrize("name", HEADS)
def test_laws_equal_the_plain_reading(tmp_path, target, name, do_sample):
    format_name, made = HEADS[name]
    drafter, plain = make(tmp_path, target, made, format_name, policy=KAry((3, 2, 1)))
    options = {"top_k": 0} if do_sample else {}
    run(target, drafter, left_padded([9, 4, 6]), 7, do_sample, **options)
    assert check_laws(target, drafter, plain) > 60


class Early(LogitsProcessor):
    """Path-dependent, and no draft token is left after token 7."""

    def __init__(self, target_ids):
        self._ids = target_ids

    def __call__(self, input_ids, scores):
        counts = torch.stack([torch.bincount(row, minlength=scores.shape[-1]) for row in input_ids])
        scores = scores - 0.4 * counts
        return torch.where(input_ids[:, -1:] == 7, scores.index_fill(-1, self._ids, -torch.inf), scores)


@pytest.mark.parametrize("do_sample", [False, True], ids=["greedy", "sampled"])
def test_laws_hold_the_callers_processors(tmp_path, target, do_sample):
    drafter, plain = make(tmp_path, target, shape(hidden=32), policy=KAry((3, 3, 1)))
    early = Early(torch.tensor(plain.target_ids))

    def process(text, logits):
        scores = early(torch.tensor([text]), logits.unsqueeze(0))[0]
        return scores if scores.max() > -torch.inf else torch.zeros_like(scores)

    inputs = left_padded([9, 9])  # no padding, which processors would see
    inputs["input_ids"][0, -1] = 7
    run(target, drafter, inputs, 9, do_sample, top_k=0, logits_processor=LogitsProcessorList([early]))
    assert check_laws(target, drafter, plain, process) > 40


POLICIES = {
    "best first": BestFirst(12),
    "chain": Chain(4),
    "paths": Paths([(0,), (1,), (0, 0), (1, 0), (0, 0, 0)]),
    "sampled children": KAry((2, 2), children="without_replacement"),
    "specexec": SpecExec(10, beam=3),
    "stochastic beam": StochasticBeam(3, 3),
}


@pytest.mark.parametrize("name", POLICIES)
def test_greedy_output_is_plain_output(tmp_path, target, name):
    drafter, _ = make(tmp_path, target, shape(hidden=32), seed=2)
    inputs = left_padded([9, 1, 5, 2])
    options = {"eos_token_id": [3, 11, 19, 27], "pad_token_id": 0, "top_k": None}
    plain = target.generate(**inputs, max_new_tokens=24, do_sample=False, **options)
    out, stats = run(target, drafter, inputs, 24, tree=POLICIES[name], **options)
    assert torch.equal(out, plain)
    assert stats.num_draft_tokens > 0


def test_merged_with_a_drafter_that_reads_no_states(tmp_path, target):
    drafter, plain = make(tmp_path, target, shape(hidden=32), seed=2)
    inputs = left_padded([9, 5])
    out, _ = run(target, Merge([drafter, TokenRecycling()]), inputs, 16)
    assert torch.equal(out, target.generate(**inputs, max_new_tokens=16, do_sample=False))
    assert check_laws(target, drafter, plain) > 20


def test_a_static_cache_of_the_target_changes_nothing(tmp_path, target):
    drafter, plain = make(tmp_path, target, shape(hidden=32), seed=2)
    inputs = left_padded([9, 5])
    out, _ = run(target, drafter, inputs, 6, cache_implementation="static")
    assert torch.equal(out, target.generate(**inputs, max_new_tokens=6, do_sample=False))
    assert check_laws(target, drafter, plain) > 10


def test_prompts_of_one_token_are_drafted_from_the_second_step_on(tmp_path, target):
    drafter, plain = make(tmp_path, target, shape(hidden=32))
    run(target, drafter, left_padded([1, 1]), 6)
    assert [step.trees.max_nodes > 1 for step in drafter.steps[:2]] == [False, True]
    assert check_laws(target, drafter, plain) > 10


def test_long_prompts_are_read_in_parts(tmp_path, target, monkeypatch):
    monkeypatch.setattr("treespec.drafters.committed.MAX_COLUMNS", 4)
    monkeypatch.setattr("treespec.heads.row_keys.FIRST_SLOTS", 4)
    drafter, plain = make(tmp_path, target, shape(hidden=32))
    run(target, drafter, left_padded([15, 6, 1]), 6)
    assert check_laws(target, drafter, plain) > 20


def test_a_cache_that_held_the_first_tokens_leaves_positions_right(tmp_path, target):
    drafter, plain = make(tmp_path, target, shape(hidden=32))
    ids, cache = prompt(1, 10), DynamicCache()
    with torch.no_grad():
        target(ids[:, :6], past_key_values=cache)
    out, _ = run(target, drafter, {"input_ids": ids, "past_key_values": cache}, 8)
    assert torch.equal(out, target.generate(ids, max_new_tokens=8, do_sample=False))
    assert check_laws(target, drafter, plain, first=6) > 20


def test_drafting_ends_with_the_context(tmp_path, target):
    drafter, _ = make(tmp_path, target, shape(hidden=32), max_length=15)
    run(target, drafter, left_padded([9, 4]), 12, tree=Chain(9))
    longest = [max(map(len, step.texts)) for step in drafter.steps]
    depths = [max(step.trees.depths.amax(1).tolist()) for step in drafter.steps]
    assert all(depth == max(min(9, 16 - length, depth), 0) for depth, length in zip(depths, longest, strict=True))
    assert all(depth == 0 for depth, length in zip(depths, longest, strict=True) if length > 15)
    assert max(depths) > 2


def test_a_budget_grows_no_deeper_than_with_any_other_draft_model(tmp_path, target):
    drafter, _ = make(tmp_path, target, shape(hidden=32, draft_vocab=64), seed=4)
    with torch.no_grad():
        drafter.head.lm_head.weight *= 40  # so sure of itself that every tree is a chain
    run(target, drafter, {"input_ids": prompt(1, 6)}, 24, tree=20)
    assert max(int(step.trees.depths.max()) for step in drafter.steps) == 8


JOINT = {
    "chain": ("token", Chain(2), PLAIN),
    "tree": ("traversal", KAry((2, 2)), PLAIN),
    "warped tree": ("traversal", BestFirst(6), WARPED),
    "selected": ("target_walk", KAry((2, 1), children="selected"), WARPED),
}


@pytest.mark.parametrize("name", JOINT)
def test_joint_law_is_the_targets(tmp_path, name):
    """Three tokens sampled by a head that lacks three of eight tokens."""
    rule, policy, options = JOINT[name]
    models = tiny_models()
    size = models.target.config.hidden_size
    made = shape(hidden=size, target_hidden=size, vocab=VOCAB_SIZE, draft_vocab=VOCAB_SIZE - 3, features=2)
    write(tmp_path, made, random_tensors(made, seed=1), SPECULATORS)
    case = Case(rule, policy, name, options, lambda _: load_drafter(tmp_path, models.target, hidden_layers=(0, 1)))
    result = run_case(case, models, num_batches=1, num_rows=1000)
    assert result["p"] > 1e-3
    assert result["block_efficiency"] > 1.1


def test_the_snippet_of_the_docs_runs(capsys):
    page = (Path(__file__).parents[2] / "docs" / "drafters.md").read_text()
    section = page.split("## EAGLE-3 heads")[1].split("\n## ")[0]
    (snippet,) = re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)
    names: dict = {}
    exec(compile(snippet, "docs/drafters.md", "exec"), names)
    assert capsys.readouterr().out.startswith("(2, 4, 5)")
    assert names["speculation"].stats.num_draft_tokens > 0
