"""Where packages for fast kernels are installed: prompts and undrafted steps go through them, trees through PyTorch.

By stand-ins for the packages, which need a GPU: see `helpers/kernel_packages.py`.
"""

import sys
from collections import Counter
from types import MethodType

import pytest
import torch
from helpers.kernel_packages import model_with_packages
from helpers.rounds import prefilled
from helpers.zoo import VOCAB_SIZE, build, prompts
from torch import nn

import treespec
from treespec.drafters import SuffixLookup
from treespec.errors import TreespecWarning
from treespec.hf import make_scorer
from treespec.hf.models.recurrent_scorer import RecurrentScorer
from treespec.hf.recurrent.layers import StateLayer
from treespec.hf.recurrent.scorer import StateScorer
from treespec.policies import KAry

OPTIONS = {"do_sample": False, "pad_token_id": 0, "eos_token_id": VOCAB_SIZE + 1, "max_new_tokens": 12}
DELTA = ("chunk_gated_delta_rule", "fused_recurrent_gated_delta_rule")
KIMI = ("chunk_kda", "fused_recurrent_kda")
SSD = ("mamba_chunk_scan_combined", "selective_state_update")
SCAN = ("selective_scan_fn", "selective_state_update")
RECURRENCES: dict[str, tuple[str, ...]] = {
    "qwen3_next": DELTA,
    "kimi_linear": KIMI,
    "bamba": SSD,
    "mamba": SCAN,
    "lfm2": (),
}
OTHERS: dict[str, tuple[str, ...]] = {
    "qwen3_5_text": DELTA,
    "mamba2": SSD,
    "qwen3_5_moe_text": DELTA,
    "olmo_hybrid": DELTA,
    "lara_mini": DELTA,
    "bailing_hybrid": KIMI,
    "falcon_h1": SSD,
    "granitemoehybrid": SSD,
    "nemotron_h": SSD,
    "zamba2": SSD,
    "falcon_mamba": SCAN,
    "jamba": SCAN,
    "zamba": SCAN,
    "lfm2_moe": (),
    "lfm3": (),
}
"""By architecture, first one of each kind, the functions of prompts and of steps, besides those of convolutions."""


def check_calls(model, recurrences, calls):
    """Prompts and steps use the packages, trees do not."""
    scorer, ids = StateScorer(model), prompts(2, 20)
    calls.clear()
    num_layers = sum(isinstance(layer, StateLayer) for layer in scorer.cache.layers)
    scorer.prefill(ids, torch.ones_like(ids, dtype=torch.bool))
    # Kimi's three convolutions are one call in some versions, and Zamba scans head by head.
    assert calls.keys() == {"causal_conv1d_fn", *recurrences[:1]}
    assert all(count % num_layers == 0 for count in calls.values())
    calls.clear()
    scorer.extend(prompts(2, 3, seed=1), torch.tensor([[-1, 0, 0]] * 2))
    scorer.commit([(0, 2), (0,)])
    assert not calls
    scorer.extend(prompts(2, 1, seed=2), torch.tensor([[-1]] * 2))
    assert calls.keys() == {"causal_conv1d_update", *recurrences[1:]}
    assert all(count % num_layers == 0 for count in calls.values())


@pytest.mark.parametrize("name", [*RECURRENCES, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_texts_are_those_of_plain_decoding_with_and_without_packages(name, monkeypatch):
    calls: Counter[str] = Counter()
    model = model_with_packages(name, calls, monkeypatch)
    check_calls(model, (RECURRENCES | OTHERS)[name], calls)
    assert isinstance(make_scorer(model), StateScorer)
    mask = torch.arange(20) >= torch.tensor([[0], [6], [3]])
    ids = prompts(3, 20).masked_fill(~mask, 0)
    given = {"attention_mask": mask.long(), **OPTIONS}
    plain = model.generate(ids, **given)
    assert torch.equal(build(name).generate(ids, **given), plain)
    calls.clear()
    for drafter, tree in ((SuffixLookup(), 8), (build(name), KAry((2, 2)))):
        speculation = treespec.TreeSpeculation(drafter, tree=tree)
        assert torch.equal(model.generate(ids, **given, custom_generate=speculation), plain)
    assert calls["causal_conv1d_update"] > 0


class _Function(nn.Module):
    """A function as the `kernels` package wraps it: a module whose forward it may replace."""

    def __init__(self, function, calls):
        super().__init__()
        self.function, self.calls, self.__name__ = function, calls, function.__name__

    def forward(self, *args, **kwargs):
        self.calls[self.__name__] += 1
        return self.function(*args, **kwargs)


@pytest.mark.parametrize("name", ["qwen3_next", "bamba"])
def test_functions_from_the_hub(name, monkeypatch):
    model, calls, ids = build(name), Counter(), prompts(2, 20)
    plain = model.generate(ids, **OPTIONS)
    file = sys.modules[type(model).__module__]
    functions = [item for item in vars(file) if item.startswith(("causal_conv1d_", "torch_", "mamba2_"))]
    for item in functions:
        monkeypatch.setattr(file, item, _Function(getattr(file, item), calls))
    speculation = treespec.TreeSpeculation(SuffixLookup(), tree=8)
    assert torch.equal(model.generate(ids, **OPTIONS, custom_generate=speculation), plain)
    assert {"causal_conv1d_fn", "causal_conv1d_update"} <= set(calls)
    scorer = prefilled(StateScorer(model), ids)
    calls.clear()
    scorer.extend(prompts(2, 3, seed=1), torch.tensor([[-1, 0, 0]] * 2))
    assert not calls


def test_a_whole_layer_from_the_hub_decodes_by_chains(monkeypatch):
    """The `kernels` package gives modules other forwards, whose functions no one knows: the self-check finds that."""
    other = model_with_packages("qwen3_5_text", Counter(), monkeypatch)
    model, ids = build("qwen3_5_text"), prompts(2, 20)
    kinds = {type(module).__name__: type(module) for module in other.modules()}
    for module in model.modules():
        if type(module).__name__ == "Qwen3_5GatedDeltaNet":
            module.forward = MethodType(kinds["Qwen3_5GatedDeltaNet"].forward, module)
    with pytest.warns(TreespecWarning, match="by chains because"):
        assert isinstance(make_scorer(model), RecurrentScorer)
    speculation = treespec.TreeSpeculation(SuffixLookup(), tree=8)
    assert torch.equal(model.generate(ids, **OPTIONS, custom_generate=speculation), model.generate(ids, **OPTIONS))
