"""Tokens of the texts that a reduced vocabulary lacks: their output rows, which of them there are, and exactness."""

from unittest.mock import patch

import pytest
import torch
from helpers import eagle3_files, eagle_files
from helpers.head_files import SPECULATORS
from helpers.head_runs import check_distributions, left_padded, make, recording, run
from helpers.tiny import prompt, tiny_llama

from benchmarks.joint_distribution.cases import VOCAB_SIZE, WARPED
from benchmarks.joint_distribution.run import Case, run_case, tiny_models
from treespec import BestFirst, KAry, load_drafter
from treespec.heads.drafting.context_vocabulary import LEAST_EXPLAINED, ContextVocabulary, fit_output_map
from treespec.heads.eagle3.module import Eagle3Config, Eagle3Head
from treespec.heads.modules.layers import LayerConfig
from treespec.protocols import History

WHOLE = torch.arange(64)
KINDS = {
    "eagle": eagle_files.shape(draft_vocab=40, flags={"lm_head_from_target": True}),
    "eagle3": eagle3_files.shape(hidden=32),
    "peagle": eagle3_files.parallel(),
}


@pytest.fixture(scope="module")
def target():
    return tiny_llama(num_layers=3)


def explained(folder, target, made):
    """A drafter whose output rows are a map of its embeddings, and the rows of all tokens."""
    drafter, plain = make(folder, target, made)
    generator = torch.Generator().manual_seed(4)
    head = drafter.head
    rows = head.embedding @ torch.randn(head.embedding.shape[1], 32, generator=generator) / 8
    with torch.no_grad():
        head.lm_head.weight.copy_(rows[head.target_ids])
    return recording(type(drafter).__bases__[1])(head, drafter.hidden_layers), plain, rows


@pytest.mark.parametrize(("name", "do_sample"), [("eagle", True), ("eagle3", False), ("peagle", True)])
def test_distributions_are_those_of_a_head_with_rows_for_the_texts_tokens(tmp_path, target, name, do_sample):
    drafter, plain, rows = explained(tmp_path, target, KINDS[name])
    own, plain.target_ids, plain.lm_head = plain.target_ids, WHOLE.tolist(), rows.double()

    def of_the_text(text, logits):
        kept = torch.isin(WHOLE, torch.tensor([*own, *text]))
        return torch.where(kept, logits, -torch.inf)

    run(target, drafter, left_padded([9, 4, 6]), 16, do_sample, tree=KAry((3, 2, 1)), top_k=0)
    assert check_distributions(target, drafter, plain, of_the_text) > 100
    drafted = {token for step in drafter.steps for token in step.trees.tokens[:, 1:].flatten().tolist()}
    assert not drafted <= set(own)


def test_a_head_may_be_cast_after_its_drafter_was_made(tmp_path, target):
    drafter, plain, _ = explained(tmp_path, target, KINDS["eagle3"])
    drafter.head.to(torch.bfloat16)
    inputs = {"input_ids": prompt(1, 9)}
    out, _ = run(target, drafter, inputs, 24)
    assert out.equal(target.generate(**inputs, max_new_tokens=24, do_sample=False))
    assert any(not set(step.trees.tokens[:, 1:].flatten().tolist()) <= set(plain.target_ids) for step in drafter.steps)


def test_joint_distribution_is_the_targets(tmp_path):
    """Three tokens sampled by a head that lacks four of eight tokens, which get rows of no use."""
    models = tiny_models()
    size = models.target.config.hidden_size
    made = KINDS["eagle3"] | {"hidden": size, "target_hidden": size, "vocab": VOCAB_SIZE, "draft_vocab": VOCAB_SIZE - 4}
    made |= {"hidden_layers": (0, 1)}
    eagle3_files.write(tmp_path, made, eagle3_files.random_tensors(made), SPECULATORS)

    def drafter(_):
        found = load_drafter(tmp_path, models.target, hidden_layers=(0, 1))
        generator = torch.Generator().manual_seed(1)
        made_up = torch.randn(size, size, generator=generator, device="cpu").to(models.target.device)
        with patch("treespec.heads.drafting.context_vocabulary.fit_output_map", return_value=made_up):
            return type(found)(found.head, found.hidden_layers)

    case = Case("traversal", BestFirst(6), "added tokens", WARPED, drafter)
    result = run_case(case, models, num_batches=1, num_rows=1000)
    assert result["p"] > 1e-3


def history_of(*texts):
    width = max(map(len, texts))
    ids = torch.tensor([[0] * (width - len(text)) + text for text in texts])
    return History(ids, torch.tensor([[False] * (width - len(text)) + [True] * len(text) for text in texts]))


def vocabulary(folder, target, history):
    drafter, _, rows = explained(folder, target, KINDS["eagle3"])
    found = ContextVocabulary(drafter.head)
    found.start(history)
    return found, drafter.head, rows


def test_tokens_are_added_as_the_texts_grow_and_forgotten_with_their_rows(tmp_path, target):
    history = history_of([2, 3])
    found, head, rows = vocabulary(tmp_path, target, history)
    missing = sorted(set(range(64)) - set(head.target_ids.tolist()))
    history.append(0, missing[:2])

    def check(added, *texts):
        ids, made, is_absent = found.read()
        assert ids.tolist() == [*head.target_ids.tolist(), *added]
        torch.testing.assert_close(made, rows[added], atol=1e-4, rtol=1e-4)
        if len(texts) == 1:
            assert is_absent is None
        else:
            assert is_absent is not None
            assert is_absent[:, 0].tolist() == [[token not in text for token in added] for text in texts]

    one, two, three, four, *_ = missing
    check([one, two], [one, two])
    history.add_rows([[2, 3]])
    check([one, two], [one, two], [])
    history.add_rows([[three, one]])
    check([one, two, three], [one, two], [], [three, one])
    history.append(1, [two, four])
    check([one, two, three, four], [one, two], [two, four], [three, one])
    history.select_rows([2, 1])
    found.forget()
    check([three, one, two, four], [three, one], [two, four])


def test_a_token_that_the_head_does_not_know_is_never_drafted(tmp_path, target):
    history = history_of([1, 2, 64, 70])
    found, head, _ = vocabulary(tmp_path, target, history)
    assert found.read().ids.max() < 64
    history.append(0, list(range(64)))
    ids, rows, _ = found.read()
    assert len(ids.unique()) == len(ids) == 40 + len(rows) == head.config.vocab_size - 1  # See `_read_texts`.


def test_a_map_is_used_where_it_explains_the_rows(tmp_path, target):
    made = eagle3_files.shape(hidden=32, vocab=64)
    drafter, *_ = explained(tmp_path, target, made)
    assert fit_output_map(drafter.head) is not None
    torch.manual_seed(0)
    for weight in (torch.randn(40, 32), torch.zeros(40, 32), torch.full((40, 32), torch.nan)):
        with torch.no_grad():
            drafter.head.lm_head.weight.copy_(weight)
        assert fit_output_map(drafter.head) is None
    with torch.no_grad():
        drafter.head.embedding.zero_()  # A singular system.
    assert fit_output_map(drafter.head) is None


def test_rows_are_divided_by_the_share_that_the_map_explains():
    torch.manual_seed(0)
    layer = LayerConfig(hidden_size=16, intermediate_size=16, num_heads=1, num_key_heads=1, head_dim=16)
    config = Eagle3Config(layer, vocab_size=4000, draft_vocab_size=2000, target_hidden_size=16)
    share, head = 0.7, Eagle3Head(config, torch.randn(4000, 16), torch.arange(2000))
    exact = torch.randn(16, 16)
    rows = head.embedding @ exact
    with torch.no_grad():
        noise = torch.randn(2000, 16) * rows.std() * (1 / share - 1) ** 0.5
        head.lm_head.weight.copy_(rows[:2000] + noise)
    found = fit_output_map(head)
    assert share > LEAST_EXPLAINED
    assert found is not None
    assert float((found * exact).sum() / exact.square().sum()) == pytest.approx(1 / share, rel=0.03)
