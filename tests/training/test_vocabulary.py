"""The draft vocabulary."""

import torch

from treespec.training.vocabulary import choose_vocabulary, draft_ids, unused_token


def test_the_vocabulary_is_of_the_most_frequent_tokens():
    tokens, top = torch.tensor([5, 5, 2, 2, 2, 7, 1]), torch.tensor([[7, -1], [7, 1]])
    assert choose_vocabulary(tokens, top, 9, 3).tolist() == [2, 5, 7]
    assert choose_vocabulary(tokens, top, 9, 9).tolist() == list(range(9))
    assert draft_ids(torch.tensor([2, 5, 7]), 9).tolist() == [-1, -1, 0, -1, -1, 1, -1, 2, -1]
    assert unused_token(tokens, 9) == 8
