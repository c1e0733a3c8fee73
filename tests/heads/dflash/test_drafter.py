"""DFlash and DSpark drafts: one distribution per depth, the most probable trees, the depth of a block."""

from itertools import product

import pytest
import torch
from helpers import medusa_files
from helpers.dflash_files import AUTHORS, FULL, SLIDING, dspark, random_tensors, shape
from helpers.head_files import layer_keys
from helpers.head_runs import check_distributions, left_padded, make, run
from helpers.tiny import prompt, tiny_llama
from transformers import MuseGlimmerAssistantConfig, MuseGlimmerAssistantModel
from transformers.generation.candidate_generator import DFlashTokenCandidateGenerator

from treespec import BestFirst, Chain, KAry


@pytest.fixture(scope="module")
def target():
    return tiny_llama(num_layers=3)


def test_warped_distributions_are_shared_by_a_depth(tmp_path, target):
    """Temperature and top-k look at no path: then a head without a Markov bias has one distribution per depth."""
    drafter, plain = make(tmp_path, target, shape())
    run(target, drafter, left_padded([9, 4]), 7, True, tree=KAry((3, 2, 2)), temperature=0.7, top_k=9)

    def process(text, logits):
        kept = logits / 0.7
        return kept.masked_fill(kept < kept.topk(9).values[-1], -torch.inf)

    assert check_distributions(target, drafter, plain, process) > 40


def test_a_window_holds_for_one_text_alone(tmp_path, target):
    """No mask is made for texts of one length, unless a window ends before their first token."""
    llama, flags = {"layer_types": [FULL, SLIDING], "sliding_window": 3}, {"sliding_window_non_causal": True}
    drafter, plain = make(tmp_path, target, shape(llama=llama, flags=flags))
    run(target, drafter, {"input_ids": prompt(1, 2)}, 7, tree=KAry((3, 2)))
    assert check_distributions(target, drafter, plain) > 20


def best_paths(target, drafter, plain, step, row, num_nodes, num_depths):
    """Brute force: the most probable paths of all that there are, with their probabilities."""
    text, ids = step.texts[row], plain.target_ids
    with torch.no_grad():
        states = target(torch.tensor([text]), output_hidden_states=True, use_cache=False).hidden_states
    features = torch.cat([states[i][0, :-1] for i in drafter.hidden_layers], -1)
    values = {(): 1.0}
    for depth in range(num_depths):
        for path in product(ids, repeat=depth):
            probs = plain.logits(features, text, path).softmax(-1)
            values |= {(*path, token): values[path] * float(probs[token]) for token in ids}
    del values[()]
    return sorted(values.items(), key=lambda item: -item[1])[:num_nodes]


@pytest.mark.parametrize(
    ("made", "is_heap"),
    [(shape, True), (dspark, True), (medusa_files.shape, False)],
    ids=["marginals, heap", "markov, heap", "medusa, levels"],
)
def test_a_budget_gives_the_most_probable_paths(tmp_path, target, monkeypatch, made, is_heap):
    """DDTree's and PCTree's trees against all products there are: 8 + 64 + 512 paths."""
    if not is_heap:
        monkeypatch.setattr("treespec.heads.drafting.depths.can_use_heap", lambda policy: False)
    drafter, plain = make(tmp_path, target, made(draft_vocab=8), seed=3)
    run(target, drafter, left_padded([9, 4, 6, 2]), 5, tree=BestFirst(14))
    first = drafter.steps[0]
    for row, tree in enumerate(first.trees.trees):
        drafted = {tuple(tree.token(i) for i in tree.path_to(node)[1:]) for node in range(1, tree.num_nodes)}
        best = best_paths(target, drafter, plain, first, row, 13, 3)
        assert drafted == {path for path, _ in best}
        expected = torch.tensor(sorted(value for _, value in best))
        torch.testing.assert_close(first.trees.values[row, 1:].sort().values, expected, atol=1e-5, rtol=1e-3)
    assert max(max(tree.depths) for tree in first.trees.trees) == 3


def test_chains_are_those_of_transformers_own_dflash(tmp_path, monkeypatch):
    """The same weights in transformers' model of this kind and in z-lab's format: same drafts, same probabilities."""
    target, names = tiny_llama(12, num_layers=3), {"fc.weight": "encoder.fc.weight"}
    names["hidden_norm.weight"] = "encoder.output_norm_enc.weight"
    made = shape(vocab=12, draft_vocab=12, mask_token=11, block=5)
    tensors = random_tensors(made, seed=5)
    keys = {key: value for key, value in layer_keys(made, "qwen3").items() if key not in ("model_type", "vocab_size")}
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
    ids = prompt(1, 9, 12)
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


@pytest.mark.parametrize("made", [shape(block=4), dspark(block=3)], ids=["dflash", "dspark"])
def test_trees_are_as_deep_as_the_block_and_no_deeper(tmp_path, target, made):
    drafter, _ = make(tmp_path, target, made, seed=4)
    run(target, drafter, {"input_ids": prompt(1, 6)}, 16, tree=Chain(9))
    assert max(int(step.trees.depths.max()) for step in drafter.steps) == 3
