"""Models on a GPU, on the CPU, and on both: texts are plain `generate`'s wherever the parts are."""

import threading

import pytest
import torch
from helpers.gpu import CPU, DEVICE, IS_GPU, on, pair, placed
from helpers.tiny import lookups, noisy_copy, padded, prompt, tiny_llama

from treespec import KAry, SuffixLookup, TokenRecycling, TreeSpeculation

GREEDY = {"max_new_tokens": 16, "do_sample": False, "pad_token_id": 0}
INPUTS = padded(prompt(3, 14), [0, 5, 2])


def decode(model, speculation=None, device=DEVICE, **options):
    return model.generate(**on(device, INPUTS), **GREEDY | options, custom_generate=speculation).tolist()


@pytest.mark.parametrize("who", ["target", "draft"])
def test_a_draft_model_on_another_device(who):
    target = tiny_llama()
    draft = noisy_copy(target)
    placed(target if who == "target" else draft)
    device = DEVICE if who == "target" else CPU
    speculation = TreeSpeculation(draft, tree=6, seed=0)
    assert decode(target, speculation, device) == decode(target, device=device)
    assert speculation.stats.num_accepted_tokens > 0
    assert len(decode(target, speculation, device, do_sample=True, top_p=0.9)) == 3


@pytest.mark.needs_gpu
@pytest.mark.parametrize("first", ["cpu", 0])
def test_layers_on_the_cpu(first):
    """As `device_map` spreads a model: layers on both, in either order."""
    accelerate = pytest.importorskip("accelerate")
    other = 0 if first == "cpu" else "cpu"
    devices = {
        "model.embed_tokens": first,
        "model.layers.0": first,
        "model.layers.1": other,
        "model.norm": other,
        "model.rotary_emb": first,
        "lm_head": other,
    }
    model = accelerate.dispatch_model(tiny_llama(), devices, main_device=0)
    device = CPU if first == "cpu" else DEVICE
    for speculation in (TreeSpeculation(noisy_copy(tiny_llama()), tree=6), lookups()):
        assert decode(model, speculation, device) == decode(model, device=device)


@pytest.mark.needs_gpu
def test_weights_offloaded_to_memory():
    """Every layer is brought to the GPU for its pass; ids on the GPU transformers would warn of."""
    accelerate = pytest.importorskip("accelerate")
    model = accelerate.cpu_offload(tiny_llama(), execution_device=0)
    assert decode(model, lookups(), CPU) == decode(model, device=CPU)


@pytest.mark.needs_gpu
def test_the_users_default_device_changes_nothing():
    target, draft = pair()
    expected = decode(target)
    torch.set_default_device(DEVICE)
    try:
        for drafter in (draft, [TokenRecycling(), SuffixLookup()]):
            for tree in (6, KAry((2, 2)), "auto"):
                assert decode(target, TreeSpeculation(drafter, tree=tree)) == expected
    finally:
        torch.set_default_device(None)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    """Texts are plain decoding's up to a near-tie: a token that differs is as good within rounding."""
    target, draft = (model.to(dtype) for model in pair())
    for speculation in (TreeSpeculation(draft, tree=8), lookups()):
        texts = decode(target, speculation, max_new_tokens=32)
        for number, text in enumerate(texts):
            ids = torch.tensor([text], device=DEVICE)
            mask = torch.cat([INPUTS["attention_mask"][number], torch.ones(32, dtype=torch.long)])[None].to(DEVICE)
            positions = (mask.cumsum(-1) - 1).clamp(min=0)
            with torch.no_grad():
                logits = target(ids, attention_mask=mask, position_ids=positions).logits[0, 13:-1].float()
            gaps = logits.amax(-1) - logits.gather(-1, ids[0, 14:, None])[:, 0]
            assert gaps.max() <= 0.05 * logits.std()


@pytest.mark.needs_gpu
def test_threads_and_streams():
    """Two threads, each on a stream of its own, with a model of its own."""
    models = [placed(tiny_llama(seed=seed)) for seed in range(2)]
    expected, found = [decode(model) for model in models], {}

    def run(number):
        with torch.cuda.stream(torch.cuda.Stream()):
            speculation = lookups()
            found[number] = [decode(models[number], speculation) for _ in range(3)]
            torch.cuda.current_stream().synchronize()

    torch.cuda.synchronize()
    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: [texts] * 3 for number, texts in enumerate(expected)}


def test_output_is_where_the_inputs_are():
    target, draft = pair()
    out = target.generate(
        **on(DEVICE, INPUTS),
        **GREEDY,
        custom_generate=TreeSpeculation(draft, tree=6),
        return_dict_in_generate=True,
        output_scores=True,
        output_logits=True,
        output_hidden_states=True,
    )
    tensors = [out.sequences, *out.scores, *out.logits, *(state for step in out.hidden_states for state in step)]
    assert {tensor.device for tensor in tensors} == {DEVICE}
    assert IS_GPU or DEVICE.type != "cuda"
