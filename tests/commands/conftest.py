"""A saved model that the commands load by its folder, and prompts."""

import pytest
from helpers.written import TARGET, TOKENIZER


@pytest.fixture
def saved(tmp_path):
    folder = tmp_path / "model"
    TARGET.save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    return folder


@pytest.fixture
def prompts(tmp_path):
    (tmp_path / "prompts.txt").write_text("What is this?\nAnd that?\n")
    return tmp_path / "prompts.txt"
