"""Drafts of all heads on hidden states: distributions equal a slow plain reading of the files, and the output is the
target's own."""

import pytest
import torch
from helpers import dflash_files, eagle3_files, eagle_files, medusa_files
from helpers.dflash_files import AUTHORS, DFLASH2, FULL, SLIDING, dflash2, dspark
from helpers.dflash_files import shape as dflash
from helpers.doc_snippets import run_opening, run_snippet
from helpers.eagle3_files import SAFEAILAB
from helpers.head_files import SPECULATORS
from helpers.head_runs import check_distributions, left_padded, make, run, with_cache
from helpers.medusa_files import random_heads
from helpers.tiny import identical, prompt, tiny_llama
from transformers import LogitsProcessor, LogitsProcessorList

from benchmarks.joint_distribution.cases import VOCAB_SIZE, WARPED
from benchmarks.joint_distribution.run import Case, run_case, tiny_models
from treespec import BestFirst, Chain, KAry, Paths, TokenRecycling, TreeSpeculation, load_drafter
from treespec.heads import Medusa
from treespec.literature import SpecExec, StochasticBeam

EAGLE, DFLASH, DSPARK = eagle3_files.shape(hidden=32), dflash(), dspark()
EAGLE_1, PARALLEL = eagle_files.shape(), eagle3_files.parallel()
DEPTHS = {"dflash": DFLASH, "dspark": DSPARK, "dflash2": dflash2()}
MODULES = {"eagle": EAGLE_1, "eagle3": EAGLE, "peagle": PARALLEL} | DEPTHS
KINDS = MODULES | {"medusa": medusa_files.shape(40)}
every_kind = pytest.mark.parametrize("made", KINDS.values(), ids=KINDS)


@pytest.fixture(scope="module")
def target():
    return tiny_llama(num_layers=3)


def eagle(**options):
    return eagle3_files.shape(**{"hidden": 32} | options)


MIXED = {"layer_types": [FULL, SLIDING], "sliding_window": 3}
SLID = {"layer_types": [SLIDING] * 2, "sliding_window": 4}
BLOCK = {"mask_token_id": 63, "target_layer_ids": [0, 1]}
PARTIAL = {"partial_rotary_factor": 0.7, "hidden_act": "gelu"}
SINKS = {"attention_sink_bias": True, "use_swa": True, "swa_window_size": 3}
SCALED = {"attention_value_scale": 0.6, "input_embedding_scale": 3.0, "output_multiplier": 0.7}
FACTORS = {"output_multiplier": 0.7, "final_logit_softcapping": 1.5}
CAPPED = BLOCK | SCALED | {"final_logit_softcapping": 1.5, "use_swa": True, "swa_window_size": 3}
NORMS = dict.fromkeys(("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output"), True)
HEADS = {
    "eagle 1": (SAFEAILAB, EAGLE_1),
    "speculators eagle 1": (SPECULATORS, eagle_files.shape(layers=2, extras=("biases",), flags={"logit_scale": 0.4})),
    "p-eagle": (SAFEAILAB, eagle3_files.parallel(draft_vocab=64, extras=("embedding", "no lm_head"), layers=1)),
    "speculators p-eagle": (SPECULATORS, eagle3_files.parallel(flags={"fc_norm": True}, llama=SLID)),
    "safeailab with an embedding": (SAFEAILAB, eagle(hidden=24, extras=("embedding",), draft_vocab=64)),
    "eagle with every norm": (SPECULATORS, eagle(hidden_layers=(1, 2), flags=NORMS)),
    "two layers with a window": (
        SPECULATORS,
        eagle(layers=2, extras=("head_norms", "biases"), key_heads=1, llama=SLID),
    ),
    "eagle with a factor": (SAFEAILAB, eagle(flags={"logit_scale": 0.4, "norm_output": True})),
    "eagle of the whole vocabulary": (SAFEAILAB, eagle(draft_vocab=64, extras=("no lm_head",), llama=PARTIAL)),
    "dflash with sinks": (
        AUTHORS,
        dflash(
            draft_vocab=64,
            extras=("head_norms", "sinks", "mask_embedding"),
            flags={"dflash_config": BLOCK | SINKS | {"attention_value_scale": 0.6}},
            llama={"partial_rotary_factor": 0.4, "hidden_act": "gelu_pytorch_tanh"},
        ),
    ),
    "dflash 2": (AUTHORS, dflash2(flags={"is_causal": False, "dflash_config": BLOCK | DFLASH2 | FACTORS}, llama=SLID)),
    "dflash with a window": (AUTHORS, dflash(draft_vocab=64, llama=MIXED, flags={"sliding_window_non_causal": True})),
    "dflash with windows, factors and a cap": (AUTHORS, dflash(draft_vocab=64, flags={"dflash_config": CAPPED})),
    "dflash, causal": (AUTHORS, dflash(draft_vocab=64, flags={"dflash_config": BLOCK | {"causal": True}})),
    "dspark with a gate and factors": (
        AUTHORS,
        dspark(
            draft_vocab=64,
            extras=("head_norms", "lm_head", "embedding", "confidence"),
            flags=SCALED | {"markov_head_type": "gated", "logit_scale": 0.4},
        ),
    ),
    "speculators dflash": (
        SPECULATORS,
        dflash(key_heads=4, extras=("biases",), llama=MIXED | {"model_type": "llama"}),
    ),
    "speculators dspark, silent anchor": (
        SPECULATORS,
        dspark(hidden_layers=(0, 2, 1), flags={"sample_from_anchor": False}, is_anchored=False),
    ),
}


@pytest.mark.parametrize("name", HEADS)
def test_distributions_equal_the_plain_reading(tmp_path, target, name):
    format_name, made = HEADS[name]
    drafter, plain = make(tmp_path, target, made, format_name)
    run(target, drafter, left_padded([9, 4, 6]), 7, do_sample=True, tree=KAry((3, 2, 1)), top_k=0)
    assert check_distributions(target, drafter, plain) > 60


class Early(LogitsProcessor):
    """Path-dependent, and none of these tokens is left after token 7."""

    def __init__(self, target_ids):
        self._ids = target_ids

    def __call__(self, input_ids, scores):
        counts = torch.stack([torch.bincount(row, minlength=scores.shape[-1]) for row in input_ids])
        scores = scores - 0.4 * counts
        return torch.where(input_ids[:, -1:] == 7, scores.index_fill(-1, self._ids, -torch.inf), scores)


@every_kind
@pytest.mark.parametrize("do_sample", [False, True], ids=["greedy", "sampled"])
def test_distributions_hold_the_callers_processors(tmp_path, target, made, do_sample):
    drafter, plain = make(tmp_path, target, made)
    early = Early(torch.tensor(plain.target_ids[:40]))  # No draft token is left of a vocabulary of 40.

    def process(text, logits):
        scores = early(torch.tensor([text]), logits.unsqueeze(0))[0]
        # Where nothing is left, every token of the draft's vocabulary is as good a guess.
        return scores if scores.max() > -torch.inf else torch.where(logits > -torch.inf, 0.0, logits)

    inputs = left_padded([9, 9])  # no padding, which processors would see
    inputs["input_ids"][0, -1] = 7
    processors = LogitsProcessorList([early])
    run(target, drafter, inputs, 9, do_sample, tree=KAry((3, 3, 1)), top_k=0, logits_processor=processors)
    assert check_distributions(target, drafter, plain, process) > 40


POLICIES = {
    "paths": Paths([(0,), (1,), (0, 0), (1, 0), (0, 0, 0)]),
    "specexec": SpecExec(10, beam=3),
    "stochastic beam": StochasticBeam(3, 3),
}
LEVELS_OR_DEPTHS = ("eagle3", "dspark")
"""Kinds that draft level by level and in one pass; others are as these, whatever the policy."""
GREEDY = [(kind, BestFirst(12)) for kind in KINDS]
GREEDY += [(kind, policy) for kind in LEVELS_OR_DEPTHS for policy in POLICIES.values()]


@pytest.mark.parametrize(
    ("kind", "policy"), GREEDY, ids=lambda part: part if isinstance(part, str) else type(part).__name__
)
def test_greedy_output_is_plain_output(tmp_path, target, kind, policy):
    drafter, _ = make(tmp_path, target, KINDS[kind], seed=2)
    options = {"max_new_tokens": 24, "eos_token_id": [3, 11, 19, 27], "top_k": None}
    speculation = TreeSpeculation(drafter, tree=policy)
    assert identical(target, left_padded([9, 1, 5, 2]), speculation, **options).num_draft_tokens > 0


@pytest.mark.parametrize("made", [EAGLE, DFLASH, DSPARK], ids=["eagle3", "dflash", "dspark"])
def test_what_a_greedy_call_forbids_is_not_drafted(tmp_path, target, made):
    drafter, plain = make(tmp_path, target, made, seed=2)
    options = {"suppress_tokens": plain.target_ids[::3], "max_new_tokens": 12}
    identical(target, left_padded([9, 5]), TreeSpeculation(drafter, tree=12), **options)
    drafted = {token for step in drafter.steps for tree in step.trees.trees for token in tree.tokens[1:].tolist()}
    assert drafted <= set(plain.target_ids) - set(options["suppress_tokens"])
    assert len(drafted) > 9


@every_kind
def test_prompts_of_any_form_in_one_call_after_the_other(tmp_path, target, monkeypatch, made):
    drafter, plain = make(tmp_path, target, made, seed=2)
    run(target, drafter, left_padded([1, 1]), 6)
    assert [step.trees.max_nodes > 1 for step in drafter.steps[:2]] == [True, True], "the prompt's pass gives a feature"
    assert check_distributions(target, drafter, plain) > 10
    # Merged with a drafter that reads no states, on a static cache of the target; rows leave one after the other.
    merged, options = TreeSpeculation([drafter, TokenRecycling()], tree=8), {"eos_token_id": [3, 11, 19, 27]}
    identical(target, left_padded([9, 1, 5, 2]), merged, cache_implementation="static", max_new_tokens=24, **options)
    assert check_distributions(target, drafter, plain) > 20
    run(target, drafter, with_cache(target, prompt(1, 10)), 8)
    assert check_distributions(target, drafter, plain, first=6) > 20
    monkeypatch.setattr("treespec.heads.drafting.unread_features.MAX_COLUMNS", 4)
    monkeypatch.setattr("treespec.heads.modules.kv_cache.FIRST_SLOTS", 4)
    run(target, drafter, left_padded([15, 6, 1]), 6)
    assert check_distributions(target, drafter, plain) > 20


@pytest.mark.parametrize("made", [EAGLE, dflash(block=8)], ids=["eagle3", "dflash"])
def test_drafting_ends_with_the_context(tmp_path, target, made):
    drafter, _ = make(tmp_path, target, made, max_length=15)
    run(target, drafter, left_padded([9, 4]), 12, tree=Chain(7))
    longest = [max(map(len, step.texts)) for step in drafter.steps]
    depths = [int(step.trees.depths.max()) for step in drafter.steps]
    assert all(depth <= max(16 - length, 0) for depth, length in zip(depths, longest, strict=True))
    assert max(depths) > 2
    assert longest[-1] > 15


def test_a_budget_grows_no_deeper_than_with_any_other_draft_model(tmp_path, target):
    drafter, _ = make(tmp_path, target, eagle(draft_vocab=64), seed=4)
    with torch.no_grad():
        drafter.head.lm_head.weight *= 40  # so confident that every tree is a chain
    run(target, drafter, {"input_ids": prompt(1, 6)}, 24, tree=20)
    assert max(int(step.trees.depths.max()) for step in drafter.steps) == 8


JOINT = {
    "eagle3, tree": ("traversal", BestFirst(6), WARPED, EAGLE),
    "eagle3, selected": ("target_walk", KAry((2, 1), children="selected"), WARPED, EAGLE),
    "dflash, tree": ("traversal", KAry((2, 2)), WARPED, DFLASH),
    "dspark, tree": ("traversal", BestFirst(6), WARPED, DSPARK),
}
SLOW = ("eagle3, selected", "dflash, tree")


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in SLOW)) for n in JOINT])
def test_joint_distribution_is_the_targets(tmp_path, name):
    """Three tokens sampled by a head that lacks three of eight tokens."""
    rule, policy, options, kind = JOINT[name]
    models = tiny_models()
    size = models.target.config.hidden_size
    made = kind | {"hidden": size, "vocab": VOCAB_SIZE, "draft_vocab": VOCAB_SIZE - 3, "hidden_layers": (0, 1)}
    made |= {"target_hidden": size} | ({"mask_token": 0} if "mask_token" in kind else {})
    files, options_of_files = (dflash_files, (3, 0.15)) if "block" in kind else (eagle3_files, (1,))
    files.write(tmp_path, made, files.random_tensors(made, *options_of_files), SPECULATORS)
    case = Case(rule, policy, name, options, lambda _: load_drafter(tmp_path, models.target, hidden_layers=(0, 1)))
    result = run_case(case, models, num_batches=1, num_rows=1000)
    assert result["p"] > 1e-3
    assert result["block_efficiency"] > (1.1 if kind is EAGLE else 1.05)


@pytest.mark.parametrize(("section", "printed"), [(None, "(2, 4, 5) "), ("DFlash and DSpark heads", "\n7 ")])
def test_the_snippets_of_the_docs_run(capsys, section, printed):
    names = run_snippet(section, page="heads.md") if section else run_opening("heads.md")
    assert printed in capsys.readouterr().out
    assert names["speculation"].stats.num_draft_tokens > 0
    run_snippet("Settings in config.json", names, page="heads.md")
    assert "heads: rope_wobble." in capsys.readouterr().out


DTYPES = [(kind, torch.bfloat16, torch.float32) for kind in MODULES]
DTYPES += [(kind, torch.float32, torch.float64) for kind in LEVELS_OR_DEPTHS]
"""Dtypes of the target and of the head: one was cast after the other was loaded, or made for another."""


@pytest.mark.parametrize(("kind", "target_dtype", "head_dtype"), DTYPES, ids=str)
def test_heads_run_in_their_own_dtype(tmp_path, kind, target_dtype, head_dtype):
    made = MODULES[kind]
    model, inputs = tiny_llama(num_layers=3), left_padded([6, 3])
    drafter, _ = make(tmp_path, model, made)
    drafter.head.to(head_dtype)
    model.to(target_dtype)
    assert identical(model, inputs, TreeSpeculation(drafter, tree=6), max_new_tokens=8).num_draft_tokens > 0
    assert run(model, drafter, inputs, 8, do_sample=True, tree=KAry((2, 1)))[1].num_draft_tokens > 0
    assert drafter.head.fc.weight.dtype == head_dtype


def test_medusa_heads_follow_the_target():
    model, speculation = tiny_llama().to(torch.bfloat16), TreeSpeculation(Medusa(random_heads()), tree=6)
    assert identical(model, left_padded([6, 3]), speculation, max_new_tokens=8).num_draft_tokens > 0
