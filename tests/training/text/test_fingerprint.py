"""A model's fingerprint: another after any change of a weight or the configuration, the same wherever the files lie."""

import pytest
import torch
from helpers.tiny import tiny_llama
from transformers import AutoModelForCausalLM

from treespec.training.text.fingerprint import fingerprint


def test_it_is_the_same_wherever_the_files_lie(tmp_path):
    model = tiny_llama()
    for name in ("here", "there"):
        model.save_pretrained(tmp_path / name)
        assert fingerprint(AutoModelForCausalLM.from_pretrained(tmp_path / name)) == fingerprint(model)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_any_row_and_any_setting_counts(dtype):
    model = tiny_llama().to(dtype)
    known = {fingerprint(model)}
    for row in range(len(model.get_input_embeddings().weight)):
        with torch.no_grad():
            model.get_input_embeddings().weight[row, -1] += 1
        known.add(fingerprint(model))
    model.config.rope_parameters["rope_theta"] = 1234.0
    known.add(fingerprint(model))
    assert len(known) == len(model.get_input_embeddings().weight) + 2
