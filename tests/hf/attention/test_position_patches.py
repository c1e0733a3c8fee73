"""Models that count slots: wrong in trees without help, and untouched before, after and in other threads."""

import threading

import pytest
import torch
from helpers.rounds import prefilled, tree_logits
from helpers.zoo import Architecture, build, prompts

from treespec.hf import TreeScorer
from treespec.hf.attention.position_patches import PositionPatches
from treespec.hf.attention.rope_lengths import RopeByLength
from treespec.tree import TokenTree

COUNTING = ("bloom", "falcon_alibi", "mpt", "gpt_neo", "llama4_text")
LONG = {"rope_type": "longrope", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}
LONG |= {"short_factor": [1.0] * 4, "long_factor": [4.0, 5.0, 6.0, 7.0]}
DYNAMIC = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}
ROPES = (
    Architecture("llama", {"rope_parameters": LONG}, name="longrope"),
    Architecture("llama", {"rope_parameters": DYNAMIC, "max_position_embeddings": 16}, name="dynamic rope"),
)
PATHS = [(0,), (1,), (2,), (0, 0), (1, 0), (2, 0), (2, 0, 0)]


def tree_error(model, num_prompt=26):
    """The largest difference of a tree's logits from uncached passes along its paths."""
    ids = prompts(1, num_prompt)
    tree = TokenTree.from_paths(PATHS, prompts(1, len(PATHS) + 1, seed=1)[0])
    scorer = prefilled(TreeScorer(model), ids)
    logits = scorer.extend(tree.tokens.unsqueeze(0), tree.parents.unsqueeze(0)).logits[0]
    return float((logits - tree_logits(model, ids.tolist(), [tree])[0]).abs().max())


@pytest.mark.parametrize(("name", "size"), [("mpt", 1e-2), ("gpt_neo", 1e-2), ("llama4_text", 1e-3)])
def test_without_help_they_are_wrong(name, size, monkeypatch):
    """The planted bug: the same passes with slots in place of positions. llama4 raises its queries' temperature every
    `floor_scale` positions; with 4 a tree crosses that twice."""
    model = build(name)
    for module in model.modules():
        if hasattr(module, "floor_scale"):
            module.floor_scale, module.attn_scale = 4, 2.0
    assert tree_error(model) <= 1e-4
    monkeypatch.setattr(PositionPatches, "__bool__", lambda self: False)
    assert tree_error(model) > size


def test_other_models_need_no_help():
    assert not PositionPatches(build("llama"))
    assert not PositionPatches(build("falcon"))


def attributes_of(model):
    return {module: (list(vars(module)), list(module._buffers)) for module in model.modules()}


@pytest.mark.parametrize("name", ["mpt", "gpt_neo", "llama4_text"])
def test_the_model_is_unchanged_after_an_error(name):
    model = build(name)
    scorer, before = prefilled(TreeScorer(model), prompts(1, 26)), attributes_of(model)
    handle = model.get_output_embeddings().register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        scorer.extend(prompts(1, 3), torch.tensor([[-1, 0, 0]]))
    handle.remove()
    assert attributes_of(model) == before


def scored(model):
    """Logits of a plain pass and of a tree's."""
    ids = prompts(1, 26)
    scorer = prefilled(TreeScorer(model), ids)
    with torch.no_grad():
        plain = model(input_ids=ids, use_cache=False).logits
    return torch.cat([plain, scorer.extend(prompts(1, 3, seed=1), torch.tensor([[-1, 0, 0]])).logits], 1)


@pytest.mark.parametrize("architecture", ["mpt", "gpt_neo", "llama4_text", *ROPES, "llama"], ids=str)
def test_passes_of_other_threads_are_left_alone(architecture):
    """While a pass, plain or of a tree, waits in its head, both passes of another thread give what they always give.

    These models have every kind of patch; the last one is attended to by folded attention.
    """
    model = build(architecture)
    assert bool(PositionPatches(model)) == (architecture in COUNTING)
    assert bool(RopeByLength(model)) == (architecture in ROPES)
    expected, owner, found = scored(model), threading.get_ident(), []

    def interrupt(*_):
        if threading.get_ident() == owner:
            other = threading.Thread(target=lambda: found.append(scored(model)))
            other.start()
            other.join()

    attributes = attributes_of(model)
    handle = model.get_output_embeddings().register_forward_pre_hook(interrupt)
    found.append(scored(model))
    handle.remove()
    assert len(found) == 4
    assert all(torch.equal(logits, expected) for logits in found)
    assert attributes_of(model) == attributes
