"""LoRA by PEFT: one adapter, several, switched, merged, disabled; as targets and as draft models."""

import pytest
import torch
from helpers.tiny import padded, prompt, tiny_llama
from peft import LoraConfig, get_peft_model

import treespec
from treespec import SuffixLookup, TokenRecycling, TreeSpeculation
from treespec.errors import UnsupportedModelError
from treespec.hf.introspect import active_adapters, model_facts
from treespec.hf.models import selfcheck

pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")
OPTIONS = {"max_new_tokens": 10, "do_sample": False}


def adapted(seed=0):
    """A tiny llama with the adapters "french" and "code", both far from doing nothing."""
    config = LoraConfig(
        r=4, target_modules=["q_proj", "v_proj", "up_proj"], init_lora_weights=False, task_type="CAUSAL_LM"
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = get_peft_model(tiny_llama(), config, adapter_name="french")
        model.add_adapter("code", config)
    return model.eval()


@pytest.fixture
def model():
    return adapted()


@pytest.fixture
def inputs():
    return padded(prompt(2), [0, 3])


def check(model, inputs, speculation):
    """Greedy output through both ways to call is plain greedy output, which is returned."""
    plain = model.generate(**inputs, **OPTIONS)
    assert torch.equal(model.generate(**inputs, **OPTIONS, custom_generate=speculation), plain)
    assert torch.equal(treespec.generate(model, inputs, speculation, **OPTIONS), plain)
    assert speculation.stats.num_draft_tokens > 0
    return plain


def test_switched_between_calls(model, inputs):
    speculation, outputs = TreeSpeculation(TokenRecycling(), tree=8), []
    for name in ("french", "code", "french", "code"):
        model.set_adapter(name)
        outputs.append(check(model, inputs, speculation))
    with model.disable_adapter():
        outputs.append(check(model, inputs, speculation))
    assert all(
        torch.equal(x, y) == (i % 2 == j % 2) for i, x in enumerate(outputs[:4]) for j, y in enumerate(outputs[:4])
    )
    assert not any(torch.equal(outputs[4], other) for other in outputs[:4])


def test_several_at_once_merged_and_unloaded(model, inputs):
    speculation = TreeSpeculation([TokenRecycling(), SuffixLookup()], tree=8)
    model.base_model.set_adapter(["french", "code"])
    both = check(model, inputs, speculation)
    model.merge_adapter()
    assert torch.equal(check(model, inputs, speculation), both)
    model.unmerge_adapter()
    assert torch.equal(check(model, inputs, speculation), both)
    assert torch.equal(check(model.merge_and_unload(), inputs, speculation), both)


def test_adapters_of_transformers_own_interface(inputs):
    model, plain = tiny_llama(), tiny_llama().generate(**inputs, **OPTIONS)
    model.add_adapter(LoraConfig(r=4, target_modules=["q_proj"], init_lora_weights=False), "own")
    speculation = TreeSpeculation(TokenRecycling(), tree=8)
    assert not torch.equal(check(model, inputs, speculation), plain)
    model.disable_adapters()
    assert torch.equal(check(model, inputs, speculation), plain)


def test_what_was_learned_follows_the_adapter(model, inputs):
    drafter = TokenRecycling()
    speculation = TreeSpeculation(drafter, tree=8)
    model.set_adapter("french")
    check(model, inputs, speculation)
    french = drafter.table.clone()
    model.set_adapter("code")
    check(model, inputs, speculation)
    assert torch.equal(drafter.table, french)
    of_code = speculation._learned.options_for(model, speculation.options).drafter
    assert not torch.equal(of_code.table, french)
    model.set_adapter("french")
    check(model, inputs, speculation)
    assert not torch.equal(drafter.table, french)
    assert speculation._learned.options_for(model, speculation.options).drafter is drafter


def test_a_draft_model_is_shared_by_the_copies(model, inputs):
    drafts = [tiny_llama(seed=1), SuffixLookup()]
    speculation = TreeSpeculation(drafts, tree=8)
    for name in ("french", "code"):
        model.set_adapter(name)
        check(model, inputs, speculation)


def test_the_self_check_follows_the_adapter(model):
    facts = {}
    for name in ("french", "code"):
        model.set_adapter(name)
        facts[name] = model_facts(model)
        treespec.hf.make_scorer(model)
    assert facts["french"].model is facts["code"].model is model.get_base_model()
    assert facts["french"].adapters != facts["code"].adapters
    assert {key[2] for key in selfcheck._results[facts["code"].model]} == {f.adapters for f in facts.values()}
    assert active_adapters(tiny_llama()) is None


def test_an_adapted_draft_model(inputs):
    target, draft = tiny_llama(), adapted()
    speculation = TreeSpeculation(draft, tree=8)
    for name in ("french", "code"):
        draft.set_adapter(name)
        check(target, inputs, speculation)
    with draft.disable_adapter():
        check(target, inputs, speculation)
    assert speculation.stats.draft_acceptance_rate > 0.2  # It is the target now.


def test_an_adapter_for_every_row_is_refused_by_name(model, inputs):
    speculation = TreeSpeculation(TokenRecycling(), tree=8)
    with pytest.raises(UnsupportedModelError, match="adapter_names"):
        model.generate(**inputs, adapter_names=["french", "code"], **OPTIONS, custom_generate=speculation)
