"""What works with attention works with states: heads, constraints, processors, seeds, traces, `auto`, `check`."""

import pytest
import torch
from helpers.grammars import Rising
from helpers.medusa_files import fitted_heads
from helpers.tiny import identical, lookups
from helpers.zoo import VOCAB_SIZE, build, prompts

import treespec
from treespec.heads import Medusa
from treespec.hf import GrammarProcessor
from treespec.hf.recurrent.scorer import StateScorer
from treespec.lab.trace import replay
from treespec.policies import KAry

OPTIONS = {"pad_token_id": 0, "eos_token_id": VOCAB_SIZE + 1, "max_new_tokens": 24}


@pytest.fixture(scope="module")
def model():
    return build("qwen3_5_text")


def test_medusa_heads_read_hidden_states(model):
    ids = prompts(2, 20)
    heads = fitted_heads(model, model.generate(ids, **OPTIONS, do_sample=False))
    stats = identical(model, ids, treespec.TreeSpeculation(Medusa(heads), tree=8), **OPTIONS)
    assert stats.mean_acceptance_length > 1.5


def test_seeds_and_traces(model, tmp_path):
    ids, outs = prompts(2, 20), []
    for number in range(2):
        file = treespec.TraceFile(tmp_path / f"{number}.jsonl", has_distributions=True)
        speculation = treespec.TreeSpeculation(build("rwkv"), tree=KAry((2, 2)), seed=3, trace=file)
        outs.append(model.generate(ids, **OPTIONS, do_sample=True, top_k=0, custom_generate=speculation))
    assert torch.equal(*outs)
    trace = treespec.read_trace(tmp_path / "0.jsonl")
    assert [list(verdict.path) for verdict in replay(trace).verdicts] == [step.path for step in trace.steps]


def test_grammars_and_processors_along_branches(model):
    options = OPTIONS | {"logits_processor": [GrammarProcessor(Rising())], "repetition_penalty": 1.3}
    for speculation in (lookups(), treespec.TreeSpeculation(build("recurrent_gemma"), tree=8)):
        identical(model, prompts(2, 20), speculation, **options)


def test_a_batch_of_four_shares_its_passes(model, monkeypatch):
    """As many passes as the row that needs most has steps, not the sum over rows."""
    ids, run, sizes = prompts(4, 20), StateScorer._run, []
    model.generate(ids, **OPTIONS, do_sample=False, custom_generate=lookups())  # With the checks of a first use.

    def counted(*args, **options):
        scores = run(*args, **options)
        sizes.append(len(scores.logits))
        return scores

    monkeypatch.setattr(StateScorer, "_run", counted)
    stats = identical(model, ids, **OPTIONS)
    assert sizes[0] == sizes[1] == 4
    assert len(sizes) == 1 + stats.num_target_passes
    assert len(sizes) <= 1 + OPTIONS["max_new_tokens"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["minimax", "qwen3_5_text", "lfm2"])
def test_check_finds_nothing_wrong(name):
    found = treespec.check(build(name), num_samples=32)
    assert found.is_right, str(found)
