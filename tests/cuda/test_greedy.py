"""Greedy texts on a GPU are plain `generate`'s in float32: every architecture, policy and drafter, batches too."""

import warnings

import pytest
from helpers import mtp_files, zoo
from helpers.gpu import DEVICE, on, placed
from helpers.medusa_files import random_heads
from helpers.tiny import identical, padded, prompt, tiny_llama
from helpers.wrong_heads import METHODS, write

from treespec import TreeSpeculation, load_drafter, load_mtp
from treespec.errors import TreespecWarning
from treespec.heads import Medusa
from treespec.lab.selftest.drafters import Planted
from treespec.protocols import Capability

GREEDY = {"max_new_tokens": 16, "do_sample": False, "pad_token_id": 0}
INPUTS = {"one row": {"input_ids": prompt()}, "a padded batch": padded(prompt(3, 14), [0, 5, 2])}


@pytest.mark.parametrize("architecture", zoo.ARCHITECTURES, ids=str)
def test_every_architecture(architecture):
    """The true continuation is planted into random trees; batches are padded on the left."""
    model, ids = placed(zoo.build(architecture)), zoo.prompts(3, 30, seed=1)
    inputs = on(DEVICE, padded(ids, [0, 5, 12]))
    options = GREEDY | {"eos_token_id": zoo.VOCAB_SIZE + 1}
    plain = model.generate(**inputs, **options)
    width = 4 if architecture.capability == Capability.TREE else 1
    speculation = TreeSpeculation(Planted(plain[:, 30:].tolist(), zoo.VOCAB_SIZE, width), tree=16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TreespecWarning)
        got = model.generate(**inputs, **options, custom_generate=speculation)
    assert got.tolist() == plain.tolist()
    assert speculation.stats.num_accepted_tokens > 0


def head(kind, folder, target):
    if kind == "medusa":
        return Medusa(random_heads())
    return load_drafter(write(folder, METHODS[kind]), target)


@pytest.mark.parametrize("is_apart", [False, True], ids=["on the GPU", "on the CPU"])
@pytest.mark.parametrize("kind", [*METHODS, "medusa"])
def test_every_kind_of_head(kind, is_apart, tmp_path):
    target = tiny_llama(num_layers=8)
    drafter = head(kind, tmp_path, target) if is_apart else head(kind, tmp_path, placed(target))
    placed(target)
    for inputs in INPUTS.values():
        assert identical(target, on(DEVICE, inputs), TreeSpeculation(drafter, tree=6), times=2).num_draft_tokens > 0


@pytest.mark.parametrize("name", ["qwen3_5", "deepseek_v3", "mimo"])
def test_mtp_layers(name, tmp_path):
    target = placed(mtp_files.write(tmp_path, name).target)
    for inputs in INPUTS.values():
        speculation = TreeSpeculation(load_mtp(target), tree=6)
        assert identical(target, on(DEVICE, inputs), speculation, times=2).num_draft_tokens > 0
