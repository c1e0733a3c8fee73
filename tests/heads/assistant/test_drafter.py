"""Drafts of Gemma 4's assistants: distributions equal transformers' own passes, chains its own assisted generation's,
and the output is the target's."""

from functools import partial

import pytest
import torch
import transformers
from helpers import zoo
from helpers.assistants import NAMES, PlainAssistant, make_assistant, make_target, with_assistants
from helpers.doc_snippets import run_snippet
from helpers.head_runs import check_distributions, left_padded, recording, run, with_cache
from helpers.tiny import identical
from packaging.version import Version
from transformers.generation import candidate_generator

from benchmarks.joint_distribution.cases import VOCAB_SIZE, WARPED
from benchmarks.joint_distribution.run import Case, run_case, tiny_models
from treespec import BestFirst, Chain, KAry, SuffixLookup, TreeSpeculation, from_config, load_drafter, speed_up
from treespec.errors import CheckpointError, ConfigError, UnsupportedModelError, VocabularyMismatchError
from treespec.heads import Assistant
from treespec.hf.loading import assistant as loading
from treespec.lab.named import named_drafters

pytestmark = with_assistants


@pytest.fixture(scope="module")
def target():
    return make_target()


def recorded(target, assistant, max_length=None):
    return recording(Assistant)(load_drafter(assistant, target).head, max_length)


@pytest.mark.parametrize(("name", "do_sample"), zip(NAMES, (True, False), strict=True))
def test_distributions_equal_transformers_own(target, name, do_sample):
    """Rows of several lengths, with holes after the first step, beyond the window."""
    assistant = make_assistant(target, name)
    drafter = recorded(target, assistant)
    options = {"top_k": 0} if do_sample else {}
    run(target, drafter, left_padded([14, 4, 2]), 8, do_sample, tree=KAry((2, 2, 1)), eos_token_id=None, **options)
    assert check_distributions(target, drafter, PlainAssistant(target, assistant)) > 100


def test_a_clustered_assistant_drafts_single_rows_as_transformers_does(target):
    """In batches, tokens outside the clusters have one logit, which depends on the whole batch."""
    assistant = make_assistant(target, is_clustered=True)
    drafter = recorded(target, assistant)
    run(target, drafter, left_padded([14]), 10, tree=Chain(4), eos_token_id=None)
    assert check_distributions(target, drafter, PlainAssistant(target, assistant)) > 15
    assert run(target, drafter, left_padded([14, 4]), 8, True, eos_token_id=None)[1].num_draft_tokens > 0


@pytest.mark.skipif(Version(transformers.__version__) < Version("5.24"), reason="its drafter has other arguments")
def test_chains_are_those_of_transformers_assisted_generation(target, monkeypatch):
    """After the prompt, and after every draft that was accepted whole: else it attends a rejected token too."""
    assistant, inputs = make_assistant(target), left_padded([14])
    assistant.generation_config.update(num_assistant_tokens=3, num_assistant_tokens_schedule="constant")
    theirs = []
    kind = candidate_generator.SinglePositionMultiTokenCandidateGenerator
    original = kind.get_candidates

    def kept(self, input_ids, *args, **kwargs):
        found = original(self, input_ids, *args, **kwargs)
        if found[0].shape[1] > input_ids.shape[1]:
            theirs.append((input_ids[0].tolist(), found[0][0, input_ids.shape[1] :].tolist()))
        return found

    monkeypatch.setattr(kind, "get_candidates", kept)
    options = {"max_new_tokens": 16, "do_sample": False, "eos_token_id": None}
    plain = target.generate(**inputs, **options)
    assert target.generate(**inputs, **options, assistant_model=assistant).equal(plain)
    drafter = recorded(target, assistant)
    assert run(target, drafter, inputs, 16, tree=Chain(3), eos_token_id=None)[0].equal(plain)
    ours = {tuple(step.texts[0]): step.trees.trees[0].tokens[1:].tolist() for step in drafter.steps}
    first, drafted = theirs[0]
    assert ours.get(tuple(first), drafted) == drafted
    assert len(theirs) > 5
    # The same generator at every step, with the outputs of a plain pass, as after a prompt.
    for text, chain in ours.items():
        if chain:
            fresh = kind(assistant, target.get_input_embeddings(), transformers.GenerationConfig(max_length=99))
            fresh.num_assistant_tokens = len(chain)
            with torch.no_grad():
                read = target(
                    torch.tensor([text[:-1]]), output_hidden_states=True, return_shared_kv_states=True, use_cache=False
                )
            assert original(fresh, torch.tensor([text]), {}, read, False, 0)[0][0, len(text) :].tolist() == chain


@pytest.mark.parametrize(
    ("attention", "policy"),
    [("sdpa", BestFirst(10)), ("eager", KAry((2, 2, 1))), ("sdpa", "auto")],
    ids=["best first", "tree", "auto"],
)
def test_greedy_output_is_plain_output(target, attention, policy):
    drafter = load_drafter(make_assistant(target, attn_implementation=attention), target)
    stats = identical(target, left_padded([9, 1, 5, 2]), TreeSpeculation(drafter, tree=policy))
    assert policy == "auto" or stats.num_draft_tokens > 0


def test_a_static_cache_and_one_that_held_the_first_tokens(target):
    assistant, ids = make_assistant(target), zoo.prompts(1, 12)
    drafter = recorded(target, assistant)
    run(target, drafter, {"input_ids": ids}, 8, tree=KAry((2, 1, 1)), cache_implementation="static", eos_token_id=None)
    assert check_distributions(target, drafter, PlainAssistant(target, assistant)) > 15
    run(target, recorded(target, assistant, max_length=14), left_padded([14]), 6, tree=Chain(4), eos_token_id=None)
    run(target, drafter, with_cache(target, ids), 6, tree=KAry((2, 1, 1)), eos_token_id=None)
    assert check_distributions(target, drafter, PlainAssistant(target, assistant)) > 15


def test_joint_distribution_is_the_targets(monkeypatch):
    """Three sampled tokens of a vocabulary of eight."""
    monkeypatch.setattr(zoo, "VOCAB_SIZE", VOCAB_SIZE)
    target = make_target(vocab_size=VOCAB_SIZE, vocab_size_per_layer_input=VOCAB_SIZE)
    target.generation_config.eos_token_id = None
    drafter = load_drafter(make_assistant(target), target)
    models = tiny_models()._replace(target=target)
    case = Case("traversal", KAry((2, 2)), "assistant", WARPED, lambda _: drafter)
    result = run_case(case, models, num_batches=1, num_rows=1000)
    assert result["p"] > 1e-3
    assert result["block_efficiency"] > 1.05


def test_folders_configurations_merges_and_speed_up(target, tmp_path):
    folder = tmp_path / "some-model"
    target.save_pretrained(folder)
    make_assistant(target).save_pretrained(tmp_path / "some-model-assistant")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    given = {"method": "mtp", "model": str(tmp_path / "some-model-assistant"), "num_speculative_tokens": 2}
    merged = TreeSpeculation([load_drafter(given["model"], model), SuffixLookup()], tree=8)
    found = speed_up(model)
    try:
        assert isinstance(found.found.drafters[0], Assistant)
        assert isinstance(from_config(given | {"method": "assistant"}, target=model).drafter, Assistant)
        for speculation in (from_config(given, target=model), merged, found):
            identical(model, left_padded([9, 4]), speculation)
        assert merged.stats.num_draft_tokens > 0
    finally:
        found.restore()
    with pytest.raises(ConfigError, match="holds a head of method 'assistant'"):
        from_config(given | {"method": "eagle3"}, target=model)


def test_the_snippet_of_the_docs_runs():
    assert run_snippet("Gemma 4's assistants", page="heads.md")["speculation"].stats.num_draft_tokens > 0


def test_it_runs_in_its_own_dtype(target):
    model = make_target().to(torch.bfloat16)
    speculation = TreeSpeculation(load_drafter(make_assistant(target), model), tree=6)
    assert identical(model, left_padded([6, 3]), speculation, max_new_tokens=8).num_draft_tokens > 0


def test_what_does_not_fit_is_said(target, tmp_path, monkeypatch):
    assistant = make_assistant(target)
    with pytest.raises(CheckpointError, match="belongs to another model"):
        load_drafter(make_assistant(target, backbone_hidden_size=48), target)
    with pytest.raises(CheckpointError, match="layer of type sliding_attention"):
        load_drafter(assistant, zoo.build("llama"))
    with pytest.raises(ConfigError, match="leave out hidden_layers"):
        load_drafter(assistant, target, hidden_layers=(1,))
    with pytest.raises(ConfigError, match="is not an assistant"):
        load_drafter(target, target)
    with pytest.raises(ConfigError, match="see load_drafter"):
        Assistant(assistant)  # pyright: ignore[reportArgumentType]
    for make in (partial(load_drafter, assistant, target), partial(Assistant, load_drafter(assistant, target).head)):
        with pytest.raises(ConfigError, match="max_length"):
            make(max_length=0)
    other = make_target(num_attention_heads=8, num_key_value_heads=4)
    with pytest.raises(CheckpointError, match="attends 2 heads of 8 numbers"):
        run(other, load_drafter(assistant, other), left_padded([5]))
    few = load_drafter(assistant, target)
    monkeypatch.setattr(zoo, "VOCAB_SIZE", 64)
    smaller = make_target(vocab_size=64, vocab_size_per_layer_input=64)
    with pytest.raises(VocabularyMismatchError, match="belongs to another model"):
        run(smaller, few, {"input_ids": torch.tensor([[5, 6, 7]])})
    make_assistant(target, backbone_hidden_size=48).save_pretrained(tmp_path / "other")
    with pytest.raises(CheckpointError, match="belongs to another model"):
        named_drafters([str(tmp_path / "other")], target, None, "some-model")
    assistant.config.get_text_config()._attn_implementation = "flash_attention_2"
    with pytest.raises(ConfigError, match="takes no masks"):
        load_drafter(assistant, target)
    make_assistant(target).save_pretrained(tmp_path)
    monkeypatch.setattr(loading, "CONFIG_MAPPING", {})
    with pytest.raises(UnsupportedModelError, match="does not know: upgrade"):
        load_drafter(tmp_path, target)
