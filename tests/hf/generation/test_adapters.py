"""Adapters by PEFT: one, several, switched, merged, disabled; as targets and as draft models; every kind of them."""

from typing import Any

import peft
import pytest
import torch
from helpers.tiny import identical, padded, prompt, tiny_llama
from packaging.version import Version
from peft import LoraConfig, get_peft_model
from transformers.integrations.peft import MIN_PEFT_VERSION

import treespec
from treespec import TokenRecycling, TreeSpeculation
from treespec.errors import TreespecWarning, UnsupportedModelError
from treespec.hf.introspect import active_adapters
from treespec.hf.models import selfcheck

pytestmark = [
    pytest.mark.filterwarnings(
        "ignore:.*`past_key_values`:FutureWarning"
    ),  # PEFT's own calls, since transformers 5.24.
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:(Unsupported layer type|Position ids are not supported):UserWarning"),
]
IS_PEFT_TAKEN = Version(peft.__version__) >= Version(MIN_PEFT_VERSION)
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


@pytest.fixture
def speculation():
    return TreeSpeculation(TokenRecycling(), tree=8)


def check(model, inputs, speculation):
    """Greedy output through both ways to call is plain greedy output, which is returned."""
    assert identical(model, inputs, speculation, **OPTIONS).num_draft_tokens > 0
    plain = model.generate(**inputs, **OPTIONS)
    assert torch.equal(treespec.generate(model, inputs, speculation, **OPTIONS), plain)
    return plain


def test_switched_between_calls(model, inputs):
    """Drafters that cannot be copied, such as a draft model, are shared."""
    speculation, outputs = TreeSpeculation([TokenRecycling(), tiny_llama(seed=1)], tree=8), []
    for name in ("french", "code", "french", "code"):
        model.set_adapter(name)
        outputs.append(check(model, inputs, speculation))
    with model.disable_adapter():
        outputs.append(check(model, inputs, speculation))
    assert all(
        torch.equal(x, y) == (i % 2 == j % 2) for i, x in enumerate(outputs[:4]) for j, y in enumerate(outputs[:4])
    )
    assert not any(torch.equal(outputs[4], other) for other in outputs[:4])


def test_several_at_once_merged_and_unloaded(model, inputs, speculation):
    model.base_model.set_adapter(["french", "code"])
    both = check(model, inputs, speculation)
    model.merge_adapter()
    assert torch.equal(check(model, inputs, speculation), both)
    model.unmerge_adapter()
    assert torch.equal(check(model, inputs, speculation), both)
    assert torch.equal(check(model.merge_and_unload(), inputs, speculation), both)


@pytest.mark.skipif(not IS_PEFT_TAKEN, reason="this transformers asks for a newer PEFT")
def test_adapters_of_transformers_own_interface(inputs, speculation):
    model, plain = tiny_llama(), tiny_llama().generate(**inputs, **OPTIONS)
    model.add_adapter(LoraConfig(r=4, target_modules=["q_proj"], init_lora_weights=False), "own")
    assert not torch.equal(check(model, inputs, speculation), plain)
    model.disable_adapters()
    assert torch.equal(check(model, inputs, speculation), plain)


def test_what_was_learned_follows_the_adapter(model, inputs, speculation):
    def learned(name):
        model.set_adapter(name)
        check(model, inputs, speculation)
        drafter = speculation._learned.of(speculation.options, active_adapters(model.modules())).drafter
        return drafter, drafter.table.clone()

    (drafter, french), (other, code) = learned("french"), learned("code")
    assert drafter is speculation.drafter is not other
    assert torch.equal(drafter.table, french)
    assert not torch.equal(code, french)
    again, table = learned("french")
    assert again is drafter
    assert not torch.equal(table, french)


def test_the_self_check_follows_the_adapter(model):
    adapters = set()
    for name in ("french", "code"):
        model.set_adapter(name)
        treespec.hf.make_scorer(model)
        adapters.add(active_adapters(model.modules()))
    kept: Any = selfcheck._results.by_model[model.get_base_model()]
    assert {key[0][2] for key in kept} == adapters
    assert len(adapters | {active_adapters(tiny_llama().modules())}) == 3


def test_an_adapted_draft_model(inputs):
    target, draft = tiny_llama(), adapted()
    speculation = TreeSpeculation(draft, tree=8)
    for name in ("french", "code"):
        draft.set_adapter(name)
        check(target, inputs, speculation)
    with draft.disable_adapter():
        check(target, inputs, speculation)
    assert speculation.stats.draft_acceptance_rate > 0.2  # It is the target now.


def test_an_adapter_for_every_row_is_refused_by_name(model, inputs, speculation):
    plain = model.generate(**inputs, **OPTIONS)
    with pytest.raises(UnsupportedModelError, match="adapter_names"):
        model.generate(**inputs, adapter_names=["french", "code"], **OPTIONS, custom_generate=speculation)
    # PEFT keeps its hooks when its `generate` ends in an error: they would choose adapters for later calls too.
    assert torch.equal(model.generate(**inputs, **OPTIONS), plain)
    assert torch.equal(model.generate(**inputs, **OPTIONS, custom_generate=speculation), plain)


ON_LAYERS = {"target_modules": ["q_proj", "v_proj"]}
INSIDE_THE_LAYERS = {
    "LoraConfig": {"r": 4, "use_dora": True, **ON_LAYERS},
    "IA3Config": {"target_modules": ["k_proj", "down_proj"], "feedforward_modules": ["down_proj"]},
    "AdaptionPromptConfig": {"adapter_len": 4, "adapter_layers": 2},
    "OFTConfig": {"r": 0, "oft_block_size": 4, **ON_LAYERS},
    "VeraConfig": {"r": 4, "target_modules": ["q_proj"]},
    "TrainableTokensConfig": {"token_indices": [11, 40]},
}
LEARN_PROMPTS = {
    "PromptTuningConfig": {"num_virtual_tokens": 4},
    "PrefixTuningConfig": {"num_virtual_tokens": 4},
    "PromptEncoderConfig": {"num_virtual_tokens": 4, "encoder_hidden_size": 16},
    "CPTConfig": {"cpt_token_ids": [1, 2], "cpt_mask": [1, 1], "cpt_tokens_type_mask": [1, 1]},
    "CartridgeConfig": {"num_virtual_tokens": 4},
}


def adapted_by(kind, options):
    """A tiny llama with an adapter that changes its output."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = get_peft_model(tiny_llama(), getattr(peft, kind)(task_type="CAUSAL_LM", **options)).eval()
        for weight in model.parameters():
            if weight.requires_grad:
                weight.data += 0.3 * torch.randn_like(weight)
    return model


@pytest.mark.parametrize("kind", INSIDE_THE_LAYERS)
def test_every_kind_inside_the_layers(kind, inputs, speculation):
    out = check(adapted_by(kind, INSIDE_THE_LAYERS[kind]), inputs, speculation)
    assert not torch.equal(out, tiny_llama().generate(**inputs, **OPTIONS))


@pytest.mark.parametrize("kind", LEARN_PROMPTS)
def test_adapters_that_learn_prompts_are_refused_by_name(kind, inputs, speculation):
    tuned = adapted_by(kind, LEARN_PROMPTS[kind])
    with pytest.raises(UnsupportedModelError, match=rf"{kind}.*LoRA, work"):
        tuned.generate(**inputs, **OPTIONS, custom_generate=speculation)
    with pytest.raises(UnsupportedModelError, match=rf"{kind}.*LoRA, work"):
        treespec.generate(tuned, inputs, speculation, **OPTIONS)


def test_an_adapter_with_a_cache_of_its_own_is_refused_by_name(inputs, speculation):
    """A second model next to the layers: its cache is packed with the model's."""
    with pytest.raises(UnsupportedModelError, match=r"a cache of its own \(ShadowCache\)"):
        adapted_by("ShadowConfig", {}).generate(**inputs, **OPTIONS, custom_generate=speculation)


def test_an_adapter_that_mixes_the_tokens_of_a_pass_decodes_plainly(inputs):
    """Lily weighs its experts by the mean over all tokens."""
    with pytest.warns(TreespecWarning, match="one token at a time because its logits depend on which tokens share"):
        assert identical(adapted_by("LilyConfig", {}), inputs, **OPTIONS).num_draft_tokens == 0
