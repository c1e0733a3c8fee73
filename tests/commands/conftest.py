"""A saved model that the commands load by its folder."""

import pytest
from helpers.written import TARGET, TOKENIZER


@pytest.fixture
def saved(tmp_path):
    folder = tmp_path / "model"
    TARGET.save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    return folder
