"""The pair of tiny models that most tests of `generate` decode with."""

import pytest
from helpers.tiny import noisy_copy, tiny_llama


@pytest.fixture(scope="module")
def target():
    return tiny_llama()


@pytest.fixture(scope="module")
def draft(target):
    return noisy_copy(target)
