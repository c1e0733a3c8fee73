"""A new kind of head is one new file and one line, which registers it: nothing else in the library names it."""

import pytest
import torch
from helpers import toy_head
from helpers.tiny import identical, tiny_llama
from helpers.wrong_heads import edit_config

from treespec import KAry, TreeSpeculation, from_config, load_drafter
from treespec.errors import CheckpointError, ConfigError
from treespec.heads.files.export import save_head
from treespec.heads.files.kinds import KINDS
from treespec.heads.modules.layers import LayerConfig

PROMPT = torch.tensor([[5, 9, 2, 7]])


@pytest.fixture
def toy():
    """The file, registered by this one line, and forgotten after the test."""
    KINDS.register("toy", "helpers.toy_head:KIND")
    yield toy_head
    KINDS.forget("toy")


@pytest.fixture
def folder(toy, tmp_path):
    layer = LayerConfig(hidden_size=32, intermediate_size=40, num_heads=4, num_key_heads=2, head_dim=8)
    target = tiny_llama(num_layers=4)
    torch.manual_seed(0)
    head = toy.ToyHead(toy.ToyConfig(layer, 64, 64, 32, 1), target.get_input_embeddings().weight, torch.arange(64))
    save_head(head, (2,), tmp_path)
    return tmp_path


@pytest.mark.parametrize("do_sample", [False, True])
def test_a_kind_from_one_file_is_saved_loaded_and_drafts(folder, toy, do_sample):
    target = tiny_llama(num_layers=4)
    drafter = load_drafter(folder, target)
    assert type(drafter) is toy.Toy
    assert drafter.hidden_layers == (2,)
    speculation = TreeSpeculation(drafter, tree=KAry((2, 2)), seed=1)
    options = {"max_new_tokens": 8, "do_sample": do_sample}
    out = target.generate(PROMPT, **options, custom_generate=speculation)
    if not do_sample:
        assert out.equal(target.generate(PROMPT, **options))
    assert speculation.stats.num_draft_tokens > 0


def test_a_kinds_name_is_a_method_of_configurations(folder):
    target = tiny_llama(num_layers=4)
    config = {"method": "toy", "model": str(folder), "num_speculative_tokens": 3}
    identical(target, PROMPT, from_config(config, target=target))
    with pytest.raises(ConfigError, match="head of method 'toy', the configuration says 'eagle3'"):
        from_config(config | {"method": "eagle3"}, target=target)


def test_a_kinds_keys_are_checked(folder):
    target = tiny_llama(num_layers=4)
    edit_config(folder, strength=2.0)
    assert load_drafter(folder, target).head.config.strength == 2
    edit_config(folder, wobble=2.0)
    with pytest.raises(CheckpointError, match="not known for Toy heads: wobble"):
        load_drafter(folder, target)


def test_without_its_line_there_is_no_such_kind(tmp_path):
    target = tiny_llama(num_layers=4)
    with pytest.raises(ConfigError, match="method must be one of"):
        from_config({"method": "toy", "model": str(tmp_path), "num_speculative_tokens": 3}, target=target)


def test_a_name_is_taken_once(toy):
    with pytest.raises(ConfigError, match="a kind of head called 'toy' is there already"):
        KINDS.register("toy", toy.KIND)
