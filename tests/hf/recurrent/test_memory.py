"""Memory of tree passes: tensors linear in the nodes, but for the chunk matrix; float64 sums of log decays."""

import pytest
import torch
from helpers.rounds import prefilled
from helpers.zoo import build, prompts
from torch.utils._python_dispatch import TorchDispatchMode

from treespec.hf.recurrent import delta_rule, linear, ssd
from treespec.hf.recurrent.scorer import StateScorer

KINDS = ("lfm2", "qwen3_5_text", "kimi_linear", "bamba", "mamba", "minimax", "recurrent_gemma")
NUM_SMALL, NUM_LARGE, NUM_HEADS = 16, 64, 8


class _Largest(TorchDispatchMode):
    """Notes the bytes of the largest tensor that an operation has made."""

    def __init__(self):
        super().__init__()
        self.found = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **kwargs or {})
        for item in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(item, torch.Tensor):
                self.found = max(self.found, item.untyped_storage().nbytes())
        return result


def largest(model, num_nodes: int) -> int:
    """Bytes of the largest tensor of a tree pass, of its commit too."""
    scorer = prefilled(StateScorer(model), prompts(1, 20))
    parents = torch.tensor([[-1, *((node - 1) // 2 for node in range(1, num_nodes))]])
    with _Largest() as noted:
        scorer.extend(prompts(1, num_nodes, seed=1), parents)
        scorer.commit([(0, 1, 3)])
    return noted.found


@pytest.mark.parametrize("name", KINDS)
def test_the_largest_tensors_are_linear_in_the_nodes(name):
    """But for the chunk matrix: one number, float64 for its decays, for every head and pair of nodes."""
    model = build(name)
    chunk_matrix = 8 * NUM_HEADS * NUM_LARGE**2
    small, large = largest(model, NUM_SMALL), largest(model, NUM_LARGE)
    assert large <= max(1.1 * NUM_LARGE / NUM_SMALL * small, chunk_matrix)


def test_decays_by_channel_are_made_by_parts(monkeypatch):
    model, ids, tokens = build("kimi_linear"), prompts(2, 20), prompts(2, 24, seed=1)
    parents = torch.tensor([[-1, *((node - 1) // 3 for node in range(1, 24))]] * 2)
    found = []
    for rows in (24, 7):
        monkeypatch.setattr(linear, "_NUM_ROWS", rows)
        scorer = prefilled(StateScorer(model), ids)
        parts = [scorer.extend(tokens[:, cut], parents[:, cut]).logits for cut in (slice(0, 9), slice(9, 24))]
        found.append(torch.cat(parts, 1))
    assert torch.allclose(*found, atol=1e-4)


@pytest.mark.parametrize(("name", "file"), [("qwen3_next", delta_rule), ("kimi_linear", delta_rule), ("bamba", ssd)])
def test_log_decays_and_states_are_not_rounded_under_bfloat16(name, file, monkeypatch):
    model, seen = build(name).to(torch.bfloat16), []
    sums = linear.path_sums

    def noted(nodes, log_decays):
        seen.append((log_decays.dtype, sums(nodes, log_decays).dtype))
        return sums(nodes, log_decays)

    for module in (linear, file):
        if hasattr(module, "path_sums"):
            monkeypatch.setattr(module, "path_sums", noted)
    scorer = prefilled(StateScorer(model), prompts(1, 20))
    scorer.extend(prompts(1, 3, seed=1), torch.tensor([[-1, 0, 0]]))
    scorer.commit([(0, 2)])
    assert set(seen) == {(torch.float32, torch.float64)}
    states = [state for layer in scorer._layers for state in layer.recurrent_states.values()]
    assert {state.dtype for state in states if state is not None} == {torch.float32}
