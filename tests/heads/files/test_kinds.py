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
def folder(tmp_path):
    """A saved head of the file's kind, registered by this one line, and forgotten after the test."""
    KINDS.register("toy", "helpers.toy_head:KIND")
    layer = LayerConfig(hidden_size=32, intermediate_size=40, num_heads=4, num_key_heads=2, head_dim=8)
    embedding = tiny_llama(num_layers=4).get_input_embeddings().weight
    torch.manual_seed(0)
    config = toy_head.ToyConfig(layer, 64, 64, 32, 1)
    save_head(toy_head.ToyHead(config, embedding, torch.arange(64)), (2,), tmp_path)
    yield tmp_path
    KINDS.forget("toy")


def test_a_kind_from_one_file_is_saved_loaded_and_drafts(folder):
    target = tiny_llama(num_layers=4)
    drafter = load_drafter(folder, target)
    assert type(drafter) is toy_head.Toy
    assert drafter.hidden_layers == (2,)
    speculation = TreeSpeculation(drafter, tree=KAry((2, 2)), seed=1)
    assert identical(target, PROMPT, speculation, max_new_tokens=8).num_draft_tokens > 0
    target.generate(PROMPT, max_new_tokens=8, do_sample=True, custom_generate=speculation)
    assert speculation.stats.num_draft_tokens > 0


def test_a_kinds_name_is_a_method_of_configurations_and_its_keys_are_checked(folder):
    target = tiny_llama(num_layers=4)
    config = {"method": "toy", "model": str(folder), "num_speculative_tokens": 3}
    identical(target, PROMPT, from_config(config, target=target))
    with pytest.raises(ConfigError, match="head of method 'toy', the configuration says 'eagle3'"):
        from_config(config | {"method": "eagle3"}, target=target)
    with pytest.raises(ConfigError, match="a kind of head called 'toy' is there already"):
        KINDS.register("toy", toy_head.KIND)
    edit_config(folder, strength=2.0)
    assert load_drafter(folder, target).head.config.strength == 2
    edit_config(folder, wobble=2.0)
    with pytest.raises(CheckpointError, match="not known for Toy heads: wobble"):
        load_drafter(folder, target)


def test_without_its_line_there_is_no_such_kind(tmp_path):
    target = tiny_llama(num_layers=4)
    with pytest.raises(ConfigError, match="method must be one of"):
        from_config({"method": "toy", "model": str(tmp_path), "num_speculative_tokens": 3}, target=target)
