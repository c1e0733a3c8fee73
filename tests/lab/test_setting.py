"""Settings: files whole or not at all, read again, refused where they do not fit."""

import json
from dataclasses import replace

import pytest
from helpers.text_tokenizers import byte_level
from helpers.tiny import identical, noisy_copy, prompt, tiny_llama

import treespec
from treespec import TreeSpeculation
from treespec.commands.models import Loaded
from treespec.commands.options import Drafting
from treespec.drafters.registry import DRAFTERS
from treespec.errors import ConfigError, TreespecWarning
from treespec.lab.setting import Setting, drafter_names, machine_facts, model_sizes
from treespec.literature import KSeq, LowConfidence, ThresholdAcceptance
from treespec.policies import BestFirst, Chain, Control, KAry, Sequoia, as_policy
from treespec.verification import RULES, TargetWalk

MODEL = tiny_llama()
LOOKUPS = ("recycling", "suffix")


@pytest.mark.parametrize(
    "tree", ["auto", "plain", "chain of 3", "tree of 8", "tree of 8, depth 2", "[(0,), (1,), (0, 0)]"]
)
def test_a_written_setting_is_read_again(tmp_path, tree):
    setting = Setting(LOOKUPS, tree, "target_walk", sizes=model_sizes(MODEL), machine=machine_facts(MODEL))
    setting.save(tmp_path / "a.json")
    assert Setting.load(tmp_path / "a.json") == setting
    speculation = treespec.load_setting(tmp_path / "a.json", MODEL, seed=3)
    assert repr(speculation.options.policy) == repr(setting.policy())
    assert speculation.options.seed == 3
    identical(MODEL, prompt(), speculation, max_new_tokens=12)
    if tree != "auto":  # It drafts where that pays on this machine.
        assert (speculation.stats.num_draft_tokens == 0) == (tree == "plain")
    treespec.save_setting(speculation, tmp_path / "b.json", MODEL)
    again = Setting.load(tmp_path / "b.json")
    assert again.drafters == LOOKUPS
    assert repr(again.policy()) == repr(setting.policy())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "b.json"]


@pytest.mark.parametrize("policy", [Control(8, 40.0), as_policy(9)])
def test_policies_that_a_setting_can_describe(tmp_path, policy):
    parts = [treespec.SuffixLookup(), treespec.TokenRecycling()]
    treespec.save_setting(TreeSpeculation(parts, tree=policy), tmp_path / "a.json", MODEL)
    setting = Setting.load(tmp_path / "a.json")
    assert setting.drafters == ("suffix", "recycling")
    assert repr(setting.policy()) == repr(policy)


class OtherTraversal(TargetWalk):
    """The caller's own, under a name of treespec's."""

    name = "traversal"


def test_what_it_cannot_describe_is_refused(tmp_path):
    policies = KAry([2]), Chain(2, stop=LowConfidence()), BestFirst(9, beam=2), Sequoia([[0.5]], 2)
    for policy in (*policies, Control(pass_ms={1: 1.0})):
        with pytest.raises(ConfigError, match="a setting cannot describe the tree"):
            treespec.save_setting(TreeSpeculation(treespec.SuffixLookup(), tree=policy), tmp_path / "a.json", MODEL)
    for rule in (ThresholdAcceptance(single=0.2, accumulated=0.3), KSeq(1), OtherTraversal()):
        given = TreeSpeculation(treespec.TokenRecycling(), tree=4, verification=rule)
        with pytest.raises(ConfigError, match=rf"a setting cannot describe the rule .*{type(rule).__name__}"):
            treespec.save_setting(given, tmp_path / "a.json", MODEL)
    for wrong in (5, treespec.SuffixLookup()):
        with pytest.raises(ConfigError, match="a setting describes a TreeSpeculation, got"):
            treespec.save_setting(wrong, tmp_path / "a.json", MODEL)  # pyright: ignore[reportArgumentType]
    given = TreeSpeculation(noisy_copy(MODEL), tree=4)
    for names in ("suffix", [], ["suffix", ""], ["suffix", 5]):
        with pytest.raises(ConfigError, match=r"drafters must be a list of names such as \['recycling', 'suffix'\], g"):
            treespec.save_setting(given, tmp_path / "a.json", MODEL, drafters=names)  # pyright: ignore
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("rule", ["auto", "token", TargetWalk(), ThresholdAcceptance(), OtherTraversal()])
def test_rules_are_written_by_the_name_that_stands_for_them(tmp_path, rule):
    RULES.register("broken", "nowhere.module:Rule")
    RULES.register("mine", OtherTraversal())
    try:
        rule = "mine" if isinstance(rule, OtherTraversal) else rule
        given = TreeSpeculation(treespec.TokenRecycling(), tree=4, verification=rule)
        treespec.save_setting(given, tmp_path / "a.json", MODEL)
        kept = treespec.load_setting(tmp_path / "a.json", MODEL)
    finally:
        RULES.forget("broken")
        RULES.forget("mine")
    assert type(kept.options.verification) is type(given.options.verification)
    assert kept.options.verification == given.options.verification


def test_drafters_without_a_name_are_given_one(tmp_path):
    noisy_copy(MODEL).save_pretrained(tmp_path / "draft")
    speculation = TreeSpeculation([noisy_copy(MODEL), treespec.SuffixLookup()], tree=4)
    with pytest.raises(ConfigError, match="give drafters="):
        treespec.save_setting(speculation, tmp_path / "a.json", MODEL)
    with pytest.raises(ConfigError, match="give drafters="):
        drafter_names(treespec.SuffixLookup(max_match=3))
    treespec.save_setting(speculation, tmp_path / "a.json", MODEL, drafters=[str(tmp_path / "draft"), "suffix"])
    again = treespec.load_setting(tmp_path / "a.json", MODEL)
    treespec.save_setting(again, tmp_path / "b.json", MODEL)
    assert (tmp_path / "a.json").read_text() == (tmp_path / "b.json").read_text().replace("b.json", "a.json")


def test_a_draft_model_with_another_tokenizer_needs_the_targets(tmp_path):
    target, tokenizer = tiny_llama(300), byte_level(300)
    tiny_llama(500, seed=1).save_pretrained(tmp_path / "draft")
    byte_level(500).save_pretrained(tmp_path / "draft")
    Setting((str(tmp_path / "draft"),), "tree of 8", "auto", sizes=model_sizes(target)).save(tmp_path / "a.json")
    with pytest.raises(ConfigError, match="give tokenizer= too"):
        treespec.load_setting(tmp_path / "a.json", target)
    speculation = treespec.load_setting(tmp_path / "a.json", target, tokenizer=tokenizer)
    assert identical(target, prompt(), speculation, max_new_tokens=12).num_draft_tokens > 0


def test_the_limit_of_merged_trees_is_written(tmp_path):
    merge = treespec.Merge([treespec.TokenRecycling(), treespec.SuffixLookup()], num_nodes=4)
    assert "num_nodes=4" in repr(merge)
    for names in (None, ["recycling", "suffix"]):
        treespec.save_setting(TreeSpeculation(merge, tree=16), tmp_path / "a.json", MODEL, drafters=names)
        loaded = treespec.load_setting(tmp_path / "a.json", MODEL)
        assert repr(loaded.drafter) == repr(merge)
    treespec.save_setting(loaded, tmp_path / "b.json", MODEL)
    assert (tmp_path / "a.json").read_text() == (tmp_path / "b.json").read_text()
    in_commands = Drafting(setting=tmp_path / "a.json").speculation(Loaded(MODEL, None, "model"))
    assert repr(in_commands.drafter) == repr(merge)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "must be a setting that treespec tune wrote"),
        ("{", "must be a setting that treespec tune wrote"),
        ('{"drafters": ["suffix"]}', "is not a setting file"),
        ('{"format": "treespec setting", "version": 7}', "has version 7"),
        ('{"format": "treespec setting", "version": 1}', "is damaged: 'drafters'"),
        ('{"format": "treespec setting", "version": 1, "drafters": []}', "drafters must be a list of names"),
        *(
            (f'{{"format": "treespec setting", "version": 1, "drafters": ["suffix"], {more}}}', words)
            for more, words in [
                ('"merge_nodes": 0', "merge_nodes"),
                ('"colour": 1', "colour"),
                ('"tree": "oak"', "tree of 8"),
                ('"tree": "chain of 0"', "positive int"),
                ('"rule": "best"', "'best'"),
                ('"max_nodes": 0', "max_nodes"),
                ('"machine": 3', "machine"),
            ]
        ),
    ],
)
def test_what_is_not_a_setting_file_is_named(tmp_path, text, words):
    if text is not None:
        (tmp_path / "a.json").write_text(text)
    with pytest.raises(ConfigError, match=r"a\.json") as found:
        treespec.load_setting(tmp_path / "a.json", MODEL)
    assert words in str(found.value)


def test_settings_of_other_models_and_machines(tmp_path):
    setting = Setting(LOOKUPS, model="one", sizes=model_sizes(MODEL), machine=machine_facts(MODEL))
    setting.save(tmp_path / "a.json")
    with pytest.raises(ConfigError, match=r"is for one with vocab_size 64.*this model has .*num_hidden_layers 3"):
        treespec.load_setting(tmp_path / "a.json", tiny_llama(num_layers=3))
    with pytest.raises(ConfigError, match="contains tree and verification: leave it out"):
        treespec.load_setting(tmp_path / "a.json", MODEL, tree=4, verification="auto")
    replace(setting, machine=machine_facts(MODEL) | {"threads": 99}).save(tmp_path / "a.json")
    with pytest.warns(TreespecWarning, match=r"threads 99, here \d+"):
        treespec.load_setting(tmp_path / "a.json", MODEL)


def test_a_drafter_that_cannot_be_made_harms_no_other(tmp_path):
    DRAFTERS.register("missing", "nowhere.module:Drafter")
    DRAFTERS.register("broken", lambda needed: needed)
    try:
        treespec.save_setting(TreeSpeculation(treespec.SuffixLookup(), tree=4), tmp_path / "a.json", MODEL)
    finally:
        DRAFTERS.forget("missing")
        DRAFTERS.forget("broken")
    assert Setting.load(tmp_path / "a.json").drafters == ("suffix",)


def test_a_failed_write_leaves_what_was_there(tmp_path):
    setting = Setting(LOOKUPS)
    setting.save(tmp_path / "a.json")
    before = (tmp_path / "a.json").read_text()
    with pytest.raises(TypeError):
        replace(setting, measured={"what": object()}).save(tmp_path / "a.json")
    assert (tmp_path / "a.json").read_text() == before
    assert json.loads(before)["version"] == 1
    assert len(list(tmp_path.iterdir())) == 1
    with pytest.raises(OSError, match="nowhere"):
        setting.save(tmp_path / "nowhere" / "a.json")
