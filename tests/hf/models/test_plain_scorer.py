"""Models whose layers attend to the highest index scores decode by plain `generate`'s passes, to the same tokens."""

from typing import Any

import pytest
import torch
from helpers.tiny import identical, lookups
from helpers.zoo import INDEXED, MLA, Architecture, build

from treespec import TokenRecycling, TreeSpeculation
from treespec.errors import TreespecError, TreespecWarning, UnsupportedModeError, UnsupportedModelError
from treespec.hf import make_scorer
from treespec.hf.introspect import model_facts
from treespec.hf.models.capability import num_indexed
from treespec.hf.models.plain_scorer import PlainScorer
from treespec.hf.models.prompt import PromptInputs
from treespec.protocols import Capability

PROMPTS = torch.arange(3, 75).reshape(3, 24)
PADDED = (torch.arange(24) >= torch.tensor([[0], [3], [5]])).long()
OPTIONS: dict[str, Any] = {"max_new_tokens": 24, "do_sample": False, "pad_token_id": 0}


def tiny(model_type: str, index_topk: int = 8) -> Any:
    return build(Architecture(model_type, MLA | INDEXED | {"index_topk": index_topk, "first_k_dense_replace": 3}))


@pytest.mark.filterwarnings("ignore::treespec.TreespecWarning")
@pytest.mark.parametrize(
    ("model_type", "num_rows", "ends"),
    [("deepseek_v32", 3, list(range(3, 30))), ("glm_moe_dsa", 1, None)],
    ids=str,
)
def test_same_tokens_as_plain_generate(model_type, num_rows, ends):
    inputs = {"input_ids": PROMPTS[:num_rows], "attention_mask": PADDED[:num_rows]}
    stats = identical(tiny(model_type), inputs, times=2, max_new_tokens=24, eos_token_id=ends)
    assert stats.num_draft_tokens == 0


@pytest.mark.filterwarnings("ignore::treespec.TreespecWarning")
def test_which_scorer_by_the_longest_text():
    model = tiny("deepseek_v32", index_topk=64)
    assert num_indexed(model_facts(model)) == 64
    prompt = PromptInputs(PROMPTS[:1], {"attention_mask": PADDED[:1]})
    found = [make_scorer(model, prompt=prompt, longest_text=size).capability for size in (64, 65, None)]
    assert found == [Capability.CHAIN, Capability.PLAIN, Capability.PLAIN]
    assert make_scorer(model).capability == Capability.CHAIN  # A draft model need not be exact.


@pytest.mark.filterwarnings("ignore::treespec.TreespecWarning")
def test_hidden_states_are_those_of_plain_generate():
    model = tiny("deepseek_v32")
    options = OPTIONS | {"return_dict_in_generate": True, "output_hidden_states": True}
    speculation = TreeSpeculation(TokenRecycling(), tree=4)
    plain, out = (model.generate(PROMPTS[:2], **options, custom_generate=c) for c in (None, speculation))
    assert torch.equal(torch.stack(plain.hidden_states[3]), torch.stack(out.hidden_states[3]))


@pytest.mark.parametrize("option", [{"use_cache": False}, {"prefill_chunk_size": 5}], ids=str)
def test_options_that_group_tokens_otherwise_are_refused_by_name(option):
    """Not for texts that are shorter than what the index keeps, which decode by chains."""
    with (
        pytest.warns(TreespecWarning, match=r"deepseek_v32.*one token at a time.*highest index scores, 8 at most"),
        pytest.raises(UnsupportedModeError, match=rf"{next(iter(option))}.* would change the passes"),
    ):
        tiny("deepseek_v32").generate(PROMPTS[:1], **OPTIONS, **option, custom_generate=lookups())
    model = tiny("deepseek_v32", index_topk=64)
    with pytest.warns(TreespecWarning, match="by chains"):
        make_scorer(model)
    assert identical(model, PROMPTS[:1], times=2, **OPTIONS, **option).num_draft_tokens > 0


def test_it_scores_one_token_and_drops_none():
    scorer = PlainScorer(model_facts(tiny("deepseek_v32")), PromptInputs(PROMPTS[:1], {}))
    scorer.prefill(PROMPTS[:1, :-1], PADDED[:1, :-1].bool())
    with pytest.raises(UnsupportedModelError, match="one token at a time, got 2 nodes"):
        scorer.extend(torch.tensor([[3, 4]]), torch.tensor([[-1, 0]]))
    scorer.extend(PROMPTS[:1, -1:], torch.tensor([[-1]]))
    with pytest.raises(TreespecError, match="plain passes keep every token"):
        scorer.commit([()])
