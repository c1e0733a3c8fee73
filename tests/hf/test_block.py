"""Block-parallel drafts: laws equal to a slow plain reading of the files, the best trees, output the target's own."""

import re
from itertools import product
from pathlib import Path

import pytest
import torch
from block_files import (
    AUTHORS,
    FULL,
    SLIDING,
    SPECULATORS,
    PlainBlock,
    dspark,
    layer_keys,
    random_tensors,
    shape,
    write,
)
from head_runs import Watched, check_laws, left_padded, run
from tiny import prompt, tiny_llama
from transformers import (
    DynamicCache,
    LogitsProcessor,
    LogitsProcessorList,
    MuseGlimmerAssistantConfig,
    MuseGlimmerAssistantModel,
)
from transformers.generation import DFlashTokenCandidateGenerator

from benchmarks.joint_law import Case, run_case, tiny_models
from benchmarks.joint_law_cases import PLAIN, VOCAB_SIZE, WARPED
from treespec import BestFirst, Chain, KAry, Merge, Paths, TokenRecycling, load_drafter
from treespec.drafters import BlockDrafter
from treespec.policies import SpecExec, StochasticBeam


@pytest.fixture(scope="module")
def target():
    return tiny_llama(num_layers=3)


class WatchedBlock(Watched, BlockDrafter):
    """Keeps what it proposed."""


def make(folder, target, made, format_name=SPECULATORS, seed=0, policy=None, **options):
    tensors = random_tensors(made, seed)
    loaded = load_drafter(write(folder, made, tensors, format_name), target)
    plain = PlainBlock(made, tensors, target.get_input_embeddings().weight, target.get_output_embeddings().weight)
    return WatchedBlock(loaded.head, loaded.hidden_layers, policy, **options), plain


MIXED = {"layer_types": [FULL, SLIDING], "sliding_window": 3}
CAUSAL = {"dflash_config": {"mask_token_id": 63, "target_layer_ids": [0, 1], "causal": True}}
HEADS = {
    "dflash": (AUTHORS, shape(draft_vocab=64)),
    "dflash with a window": (
        AUTHORS,
        shape(draft_vocab=64, llama=MIXED, flags={"sliding_window_non_causal": True}),
    ),
    "dflash, causal": (AUTHORS, shape(draft_vocab=64, flags=CAUSAL)),
    "dspark": (AUTHORS, dspark(draft_vocab=64, extras=("head_norms", "lm_head", "embedding", "confidence"))),
    "speculators dflash": (
        SPECULATORS,
        shape(layers=1, key_heads=4, extras=("biases",), llama={"model_type": "llama"}),
    ),
    "speculators dflash with a window": (SPECULATORS, shape(llama=MIXED)),
    "speculators dspark": (SPECULATORS, dspark(hidden_layers=(0, 2, 1))),
    "speculators dspark, silent anchor": (SPECULATORS, dspark(flags={"sample_from_anchor": False}, is_anchored=False)),
}


@pytest.mark.parametrize("do_sample", [False, True], ids=["greedy", "sampled"])
@pytest.mark.parametrize("name", HEADS)
def test_laws_equal_the_plain_reading(tmp_path, target, name, do_sample):
    format_name, made = HEADS[name]
    drafter, plain = make(tmp_path, target, made, format_name, policy=KAry((3, 2)))
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


@pytest.mark.parametrize("made", [shape(), dspark()], ids=["dflash", "dspark"])
@pytest.mark.parametrize("do_sample", [False, True], ids=["greedy", "sampled"])
def test_laws_hold_the_callers_processors(tmp_path, target, made, do_sample):
    drafter, plain = make(tmp_path, target, made, policy=KAry((3, 3, 1)))
    early = Early(torch.tensor(plain.target_ids))

    def process(text, logits):
        scores = early(torch.tensor([text]), logits.unsqueeze(0))[0]
        return scores if scores.max() > -torch.inf else torch.zeros_like(scores)

    inputs = left_padded([9, 9])  # no padding, which processors would see
    inputs["input_ids"][0, -1] = 7
    run(target, drafter, inputs, 9, do_sample, top_k=0, logits_processor=LogitsProcessorList([early]))
    assert check_laws(target, drafter, plain, process) > 40


def test_warped_laws_are_shared_by_a_depth(tmp_path, target):
    """Temperature and top-k look at no path: then a head without a Markov bias has one law per depth."""
    drafter, plain = make(tmp_path, target, shape(), policy=KAry((3, 2, 2)))
    run(target, drafter, left_padded([9, 4]), 7, True, temperature=0.7, top_k=9)

    def process(text, logits):
        kept = logits / 0.7
        return kept.masked_fill(kept < kept.topk(9).values[-1], -torch.inf)

    assert check_laws(target, drafter, plain, process) > 40


def best_paths(target, drafter, plain, step, row, num_nodes, num_depths):
    """Brute force: the most probable paths of all that there are, with their probabilities."""
    text, ids = step.texts[row], plain.target_ids
    with torch.no_grad():
        states = target(torch.tensor([text]), output_hidden_states=True, use_cache=False).hidden_states
    beside = torch.cat([states[i][0, :-1] for i in drafter.hidden_layers], -1)
    values = {(): 1.0}
    for depth in range(num_depths):
        for path in product(ids, repeat=depth):
            law = plain.logits(beside, text, path).softmax(-1)
            values |= {(*path, token): values[path] * float(law[token]) for token in ids}
    del values[()]
    return sorted(values.items(), key=lambda item: -item[1])[:num_nodes]


@pytest.mark.parametrize("is_heap", [True, False], ids=["heap", "levels"])
@pytest.mark.parametrize("made", [shape, dspark], ids=["marginals", "markov"])
def test_a_budget_gives_the_most_probable_paths(tmp_path, target, monkeypatch, made, is_heap):
    """DDTree's and PCTree's trees against all products there are: 8 + 64 + 512 paths."""
    if not is_heap:
        monkeypatch.setattr("treespec.drafters.block.can_use_heap", lambda policy: False)
    drafter, plain = make(tmp_path, target, made(draft_vocab=8), policy=BestFirst(14), seed=3)
    run(target, drafter, left_padded([9, 4, 6, 2]), 5)
    first = drafter.steps[0]
    for row, tree in enumerate(first.trees.trees):
        drafted = {tuple(tree.token(i) for i in tree.path_to(node)[1:]) for node in range(1, tree.num_nodes)}
        best = best_paths(target, drafter, plain, first, row, 13, 3)
        assert drafted == {path for path, _ in best}
        expected = torch.tensor(sorted(value for _, value in best))
        torch.testing.assert_close(first.trees.values[row, 1:].sort().values, expected, atol=1e-5, rtol=1e-3)
    assert max(max(tree.depths) for tree in first.trees.trees) == 3


@pytest.mark.parametrize("length", [9, 5])
def test_chains_are_those_of_transformers_own_dflash(tmp_path, monkeypatch, length):
    """The same weights in transformers' model of this kind and in z-lab's format: same drafts, same probabilities."""
    target, names = tiny_llama(12, num_layers=3), {"fc.weight": "encoder.fc.weight"}
    names["hidden_norm.weight"] = "encoder.output_norm_enc.weight"
    made = shape(vocab=12, draft_vocab=12, mask_token=11, block=5)
    tensors = random_tensors(made, seed=5)
    keys = {key: value for key, value in layer_keys(made).items() if key not in ("model_type", "vocab_size")}
    special = {"block_size": 5, "mask_token_id": 11, "target_layer_ids": [0, 1], "layer_types": [FULL] * 2}
    assistant = MuseGlimmerAssistantModel(
        MuseGlimmerAssistantConfig(**keys | special, bos_token_id=None, eos_token_id=None, pad_token_id=0)
    ).eval()
    assistant.load_state_dict({names.get(name, name): tensor for name, tensor in tensors.items()})
    theirs = {}

    class Kept(DFlashTokenCandidateGenerator):
        def get_candidates(self, input_ids, *args, **kwargs):
            ids, logits = super().get_candidates(input_ids, *args, **kwargs)
            if logits is not None:
                text = tuple(input_ids[0].tolist())
                theirs[text] = ids[0, len(text) :].tolist(), logits[0].softmax(-1).amax(-1).cumprod(0)
            return ids, logits

    monkeypatch.setattr("transformers.generation.utils.DFlashTokenCandidateGenerator", Kept)
    drafter, _ = make(tmp_path, target, made, AUTHORS, seed=5)
    ids = prompt(1, length, 12)
    expected = target.generate(
        ids, max_new_tokens=40, do_sample=False, assistant_model=assistant, speculation_type="dflash"
    )
    out, stats = run(target, drafter, {"input_ids": ids}, 40, tree=Chain(4))
    assert torch.equal(out, expected)
    assert stats.num_accepted_tokens > 3
    ours = {tuple(step.texts[0]): step.trees for step in drafter.steps}
    both = sorted(ours.keys() & theirs.keys())
    assert len(both) > 20
    for text in both:
        tokens, values = theirs[text]
        depth = ours[text].max_nodes - 1
        assert ours[text].tokens[0, 1:].tolist() == tokens[:depth]
        torch.testing.assert_close(ours[text].values[0, 1:], values[:depth], atol=1e-5, rtol=1e-3)


POLICIES = {
    "best first": BestFirst(12),
    "chain": Chain(4),
    "paths": Paths([(0,), (1,), (0, 0), (1, 0), (0, 0, 0)]),
    "sampled children": KAry((2, 2), children="without_replacement"),
    "specexec": SpecExec(10, beam=3),
    "stochastic beam": StochasticBeam(3, 3),
}


@pytest.mark.parametrize("made", [shape(), dspark()], ids=["dflash", "dspark"])
@pytest.mark.parametrize("name", POLICIES)
def test_greedy_output_is_plain_output(tmp_path, target, name, made):
    drafter, _ = make(tmp_path, target, made, seed=2)
    inputs = left_padded([9, 1, 5, 2])
    options = {"eos_token_id": [3, 11, 19, 27], "pad_token_id": 0, "top_k": None}
    plain = target.generate(**inputs, max_new_tokens=24, do_sample=False, **options)
    out, stats = run(target, drafter, inputs, 24, tree=POLICIES[name], **options)
    assert torch.equal(out, plain)
    assert stats.num_draft_tokens > 0


def test_merged_with_a_drafter_that_reads_no_states(tmp_path, target):
    drafter, plain = make(tmp_path, target, dspark(), seed=2)
    inputs = left_padded([9, 5])
    out, _ = run(target, Merge([drafter, TokenRecycling()]), inputs, 16)
    assert torch.equal(out, target.generate(**inputs, max_new_tokens=16, do_sample=False))
    assert check_laws(target, drafter, plain) > 20


def test_prompts_of_one_token_are_drafted_without_a_context(tmp_path, target):
    drafter, plain = make(tmp_path, target, dspark())
    run(target, drafter, left_padded([1, 1]), 6)
    assert drafter.steps[0].trees.max_nodes > 1
    assert check_laws(target, drafter, plain) > 10


def test_long_prompts_are_read_in_parts(tmp_path, target, monkeypatch):
    monkeypatch.setattr("treespec.drafters.committed.MAX_COLUMNS", 4)
    monkeypatch.setattr("treespec.heads.row_keys.FIRST_SLOTS", 4)
    drafter, plain = make(tmp_path, target, dspark())
    run(target, drafter, left_padded([15, 6, 1]), 6)
    assert check_laws(target, drafter, plain) > 20


def test_a_cache_that_held_the_first_tokens_leaves_positions_right(tmp_path, target):
    drafter, plain = make(tmp_path, target, shape())
    ids, cache = prompt(1, 10), DynamicCache()
    with torch.no_grad():
        target(ids[:, :6], past_key_values=cache)
    out, _ = run(target, drafter, {"input_ids": ids, "past_key_values": cache}, 8)
    assert torch.equal(out, target.generate(ids, max_new_tokens=8, do_sample=False))
    assert check_laws(target, drafter, plain, first=6) > 20


@pytest.mark.parametrize(("made", "depth"), [(shape(block=4), 3), (dspark(block=3), 3)], ids=["dflash", "dspark"])
def test_trees_are_as_deep_as_the_block_and_no_deeper(tmp_path, target, made, depth):
    drafter, _ = make(tmp_path, target, made, seed=4)
    run(target, drafter, {"input_ids": prompt(1, 6)}, 16, tree=Chain(9))
    depths = [int(step.trees.depths.max()) for step in drafter.steps]
    assert max(depths) == depth
    assert depths[-1] <= depth


def test_drafting_ends_with_the_context(tmp_path, target):
    drafter, _ = make(tmp_path, target, shape(block=8), max_length=15)
    run(target, drafter, left_padded([9, 4]), 12, tree=Chain(7))
    longest = [max(map(len, step.texts)) for step in drafter.steps]
    depths = [int(step.trees.depths.max()) for step in drafter.steps]
    assert all(depth <= max(16 - length, 0) for depth, length in zip(depths, longest, strict=True))
    assert max(depths) > 2
    assert depths[-1] == 0


JOINT = {
    "chain": ("token", Chain(2), PLAIN, dspark),
    "tree of marginals": ("traversal", KAry((2, 2)), PLAIN, shape),
    "markov tree": ("traversal", KAry((2, 2)), PLAIN, dspark),
    "warped markov tree": ("traversal", BestFirst(6), WARPED, dspark),
    "selected": ("target_walk", KAry((4, 1), children="selected"), WARPED, dspark),
}


@pytest.mark.parametrize("name", JOINT)
def test_joint_law_is_the_targets(tmp_path, name):
    """Three tokens sampled by a head that lacks three of eight tokens."""
    rule, policy, options, kind = JOINT[name]
    models = tiny_models()
    size = models.target.config.hidden_size
    made = kind(hidden=size, vocab=VOCAB_SIZE, draft_vocab=VOCAB_SIZE - 3, hidden_layers=(0, 1), mask_token=0)
    write(tmp_path, made, random_tensors(made, seed=3, scale=0.15), SPECULATORS)
    case = Case(rule, policy, name, options, lambda _: load_drafter(tmp_path, models.target, hidden_layers=(0, 1)))
    result = run_case(case, models, num_batches=1, num_rows=1000)
    assert result["p"] > 1e-3
    assert result["block_efficiency"] > 1.05


def test_the_snippet_of_the_docs_runs(capsys):
    page = (Path(__file__).parents[2] / "docs" / "drafters.md").read_text()
    section = page.split("## Block-parallel heads")[1].split("\n## ")[0]
    (snippet,) = re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)
    names: dict = {}
    exec(compile(snippet, "docs/drafters.md", "exec"), names)
    assert capsys.readouterr().out.startswith("7 ")
    assert names["speculation"].stats.num_draft_tokens > 0
