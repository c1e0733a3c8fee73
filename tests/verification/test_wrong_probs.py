"""What a user can get wrong in a call of `verify`, and the error that each mistake gives."""

import pytest
import torch

from treespec import TokenTree, verify
from treespec.errors import ConfigError, InvalidTreeError, LogitsError, TreespecError, VocabularyMismatchError

UNIFORM = torch.full((3, 4), 0.25)
CHAIN = TokenTree.chain([0, 1, 2], UNIFORM[:2])

WRONG = {
    "probabilities of another shape": (
        lambda: verify(CHAIN, UNIFORM[:2]),
        InvalidTreeError,
        "one distribution per node",
    ),
    "logits for probabilities": (lambda: verify(CHAIN, UNIFORM * 9), LogitsError, "not logits"),
    "NaN probabilities": (lambda: verify(CHAIN, UNIFORM * torch.nan), LogitsError, "not a distribution"),
    "half-precision probabilities": (lambda: verify(CHAIN, UNIFORM.half()), ConfigError, "float32"),
    "another vocabulary": (
        lambda: verify(CHAIN, torch.full((3, 5), 0.2)),
        VocabularyMismatchError,
        "4",
    ),
    "coins out of range": (lambda: verify(CHAIN, UNIFORM, coins=torch.ones(3)), ConfigError, r"\[0, 1\)"),
}


@pytest.mark.parametrize(("call", "error", "words"), WRONG.values(), ids=WRONG.keys())
def test_wrong_input_gets_a_clear_error(call, error, words):
    with pytest.raises(error, match=words) as caught:
        call()
    assert isinstance(caught.value, TreespecError)
