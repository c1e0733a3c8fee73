"""SGLang's and TensorRT-LLM's settings mean the same tree and drafter here."""

import pytest
import torch
from helpers.tiny import identical, noisy_copy, tiny_llama
from helpers.wrong_heads import EAGLE, write

import treespec
from treespec.drafters import SuffixLookup
from treespec.errors import ConfigError, InvalidTreeError
from treespec.hf.engine_words import in_vllm_words
from treespec.policies import BestFirst, Chain, Paths

PROMPT = torch.tensor([[5, 6, 7, 8, 5, 6]])
SGLANG = {"speculative_algorithm": "EAGLE3", "speculative_num_steps": 4, "speculative_draft_model_path": "x"}
TENSORRT = {"decoding_type": "Eagle3", "speculative_model": "x", "max_draft_len": 4}


def shape(config):
    return repr(in_vllm_words(config)[1])


def test_sglang():
    found, tree = in_vllm_words(SGLANG)
    assert found == {"method": "eagle3", "model": "x", "num_speculative_tokens": 4}
    assert repr(tree) == repr(Chain(4))
    wide = SGLANG | {"speculative_eagle_topk": 8, "speculative_num_draft_tokens": 32}
    assert shape(wide) == repr(BestFirst(32, beam=8, depth=4, branching=8))
    assert in_vllm_words(wide)[0]["num_speculative_tokens"] == 31

    # A head, or the target's own layers.
    eagle = SGLANG | {"speculative_algorithm": "EAGLE"}
    assert in_vllm_words(eagle)[0] == {"method": "eagle", "model": "x", "num_speculative_tokens": 4}
    assert in_vllm_words(eagle | {"speculative_draft_model_path": None})[0]["method"] == "mtp"

    # A number of draft tokens alone is a chain.
    for algorithm in ("NGRAM", "DFLASH"):
        found, tree = in_vllm_words({"speculative_algorithm": algorithm, "speculative_num_draft_tokens": 8})
        assert found == {"method": algorithm.lower(), "num_speculative_tokens": 7}
        assert repr(tree) == repr(Chain(7))


def test_tensorrt():
    assert shape(TENSORRT) == repr(Chain(4))
    choices = [[0], [1], [0, 0]]
    assert shape(TENSORRT | {"eagle_choices": choices}) == repr(Paths([(0,), (1,), (0, 0)]))
    dynamic = TENSORRT | {"use_dynamic_tree": True, "dynamic_tree_max_topK": 3, "max_total_draft_tokens": 15}
    assert shape(dynamic) == repr(BestFirst(16, beam=3, depth=4, branching=3))
    words = {"decoding_type": "NGram", "max_draft_len": 3, "max_matching_ngram_size": 4}
    assert in_vllm_words(words)[0] == {"method": "ngram", "prompt_lookup_max": 4, "num_speculative_tokens": 3}

    mtp = {"decoding_type": "MTP", "num_nextn_predict_layers": 2}
    assert in_vllm_words(mtp)[0] == {"method": "mtp", "num_speculative_tokens": 2}
    assert in_vllm_words(TENSORRT | {"decoding_type": "Eagle"})[0]["method"] == "eagle3"
    medusa = TENSORRT | {"decoding_type": "Medusa", "medusa_choices": [[0], [1], [0, 0]]}
    assert in_vllm_words(medusa)[0] == {"method": "medusa", "model": "x", "num_speculative_tokens": 3}


@pytest.mark.parametrize(
    ("config", "error", "words"),
    [
        (SGLANG | {"speculative_algorithm": "MAGIC"}, ConfigError, "speculative_algorithm must be one of"),
        (SGLANG | {"speculative_num_steps": 0}, ConfigError, "speculative_num_steps"),
        (SGLANG | {"speculative_eagle_topk": 4}, ConfigError, "the number of its nodes"),
        (SGLANG | {"speculative_token_map": "x"}, ConfigError, "SGLang's settings"),
        (TENSORRT | {"decoding_type": "Magic"}, ConfigError, "decoding_type must be one of"),
        (TENSORRT | {"posterior_threshold": 0.1}, ConfigError, "TensorRT-LLM's settings"),
        (TENSORRT | {"eagle_choices": "nonsense"}, InvalidTreeError, "rank paths"),
    ],
)
def test_what_is_not_known_is_refused_by_name(config, error, words):
    with pytest.raises(error, match=words):
        treespec.from_config(config)


def test_texts_are_plain(tmp_path):
    model, folder = tiny_llama(num_layers=8), str(write(tmp_path, EAGLE))
    wide = {"speculative_draft_model_path": folder, "speculative_eagle_topk": 2, "speculative_num_draft_tokens": 6}
    draft = {"decoding_type": "DraftTarget", "max_draft_len": 3, "speculative_model": noisy_copy(model)}
    lookup = {"method": "ngram_gpu", "num_speculative_tokens": 3}
    for config in (SGLANG | wide, TENSORRT | {"speculative_model": folder}, draft, lookup):
        speculation = treespec.from_config(config, target=model)
        assert identical(model, PROMPT, speculation, max_new_tokens=24).num_draft_tokens > 0


def test_suffix_decoding():
    common = {"method": "suffix", "num_speculative_tokens": 4}
    found = treespec.from_config(common | {"suffix_decoding_max_tree_depth": 9, "suffix_decoding_min_token_prob": 0.1})
    assert isinstance(found.drafter, SuffixLookup)
    assert found.drafter.store is not None
    assert treespec.from_config(common | {"suffix_decoding_max_cached_requests": 0}).drafter.store is None
    limited = treespec.from_config(common | {"suffix_decoding_max_spec_factor": 1.0})
    assert "max_factor=1.0" in repr(limited.drafter)
    for key, value in (("max_cached_requests", 10), ("max_spec_factor", -1.0), ("min_token_prob", 2.0)):
        with pytest.raises(ConfigError):
            treespec.from_config(common | {f"suffix_decoding_{key}": value})
