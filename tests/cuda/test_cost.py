"""The cost of a step on a GPU: waits of the host, memory; and decoding after it ran out of memory."""

import pytest
import torch
from helpers.accelerator.waits import cases, count, tiny_models
from helpers.gpu import DEVICE, counted_syncs, on, placed
from helpers.tiny import noisy_copy, padded, prompt, tiny_llama

from treespec import TokenRecycling, TreeSpeculation
from treespec.speedup import estimate_memory

pytestmark = pytest.mark.needs_gpu
ROWS_LEAVE = 0.5
"""Where rows end, caches are cut: not in every step."""
WORDS, NUM_NODES = 32_768, 32


@pytest.mark.parametrize("case", cases(), ids=lambda case: case[0])
def test_waits_are_those_of_the_pretended_accelerator(case, record_property):
    """As many per step as tests/accelerator/test_counts.py allows, among them none of the models' passes."""
    model, draft = map(placed, tiny_models())
    with counted_syncs() as device:
        row = count(case, model, draft, device, 32)
    name, waits = case[0], row["reads"]
    record_property("measured", f"{waits:.2f} waits per step ({row['levels']:.2f} levels): {name}")
    is_adaptive = ", tree of" in name and row["levels"] > 0
    waiting_levels = row["levels"] if is_adaptive or "penalty" in name else 0
    assert waits <= waiting_levels + 2 + ROWS_LEAVE, row["reads by line"]


def peak(run):
    """The most bytes allocated at once beyond what was before."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


@pytest.mark.parametrize("options", [{"do_sample": False}, {"do_sample": True}], ids=["greedy", "sampled"])
@pytest.mark.parametrize("who", ["draft model", "tables"])
def test_peak_memory_is_within_the_estimate(who, options, record_property):
    model = placed(tiny_llama(vocab_size=WORDS))
    drafter = placed(noisy_copy(tiny_llama(vocab_size=WORDS))) if who == "draft model" else TokenRecycling()
    speculation = TreeSpeculation(drafter, tree=NUM_NODES, seed=0)
    ids = prompt(4, 20).to(DEVICE)
    options = {"max_new_tokens": 16, "pad_token_id": 0, **options}
    decode = lambda **more: model.generate(ids, **options, **more)  # noqa: E731
    for more in ({}, {"custom_generate": speculation}):  # The libraries' own workspaces.
        decode(**more)
    found = peak(lambda: decode(custom_generate=speculation)) - peak(decode)
    memory = estimate_memory(model, speculation)
    bound = memory.added(36, 4, NUM_NODES) - memory.weights  # The draft's weights are there before.
    record_property("measured", f"peak {found / 2**20:.1f} MiB, estimated {bound / 2**20:.1f}: {who}, {options}")
    assert found <= bound + 2**20


def test_a_model_that_ran_out_of_memory_decodes_on():
    """A pass over a large tree of many rows does not fit; smaller calls are plain `generate`'s afterwards."""
    model = placed(tiny_llama(vocab_size=WORDS))
    draft = placed(noisy_copy(tiny_llama(vocab_size=WORDS)))
    options = {"max_new_tokens": 16, "do_sample": False, "pad_token_id": 0}
    inputs = on(DEVICE, padded(prompt(2, 14), [0, 5]))
    plain = model.generate(**inputs, **options).tolist()
    speculation = TreeSpeculation(draft, tree=NUM_NODES)
    assert model.generate(**inputs, **options, custom_generate=speculation).tolist() == plain
    torch.cuda.empty_cache()
    room = torch.cuda.memory_reserved() + 16 * 2**20  # A tree's logits take 4 MiB per row.
    torch.cuda.set_per_process_memory_fraction(room / torch.cuda.get_device_properties(DEVICE).total_memory)
    try:
        with pytest.raises(torch.OutOfMemoryError):
            model.generate(prompt(32).to(DEVICE), **options, custom_generate=speculation)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    for _ in range(2):
        assert model.generate(**inputs, **options, custom_generate=speculation).tolist() == plain
