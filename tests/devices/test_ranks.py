"""A tensor parallel model decodes as one process does: the same tokens on every rank, and no rank waits in vain."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from helpers.tiny import noisy_copy, prompt, tiny_llama
from helpers.two_ranks import on_two_ranks
from torch import Tensor
from transformers import AutoModelForCausalLM, StoppingCriteria
from transformers.distributed.configuration_utils import DistributedConfig

from treespec import KAry, SuffixLookup, TokenRecycling, TreeSpeculation, optimize
from treespec.devices.ranks import ROW_BYTES, Ranks
from treespec.engine.ranks import Alone
from treespec.errors import RanksDisagreeError, TreespecError, UnsupportedModelError
from treespec.hf.introspect import model_facts, ranks_of
from treespec.hf.weights import local_part, whole_weight
from treespec.lab.pass_times import pass_profile
from treespec.policies import Control

ROOT = Path(__file__).parents[2]
OPTIONS: dict[str, Any] = {"max_new_tokens": 12, "pad_token_id": 0}
SAMPLED = OPTIONS | {"do_sample": True, "temperature": 0.9, "top_p": 0.9}
PASS_MS = {1: 10.0, 16: 11.0, 64: 14.0}

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the ranks are forked")


def split(folder: str) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, distributed_config=DistributedConfig(tp_plan="auto")).eval()


class OwnTrees:
    """A drafter that drafts differently on every rank."""

    def __init__(self) -> None:
        self._inner = [SuffixLookup, TokenRecycling][dist.get_rank()]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class StopsOnRank0(StoppingCriteria):
    """Stops at six new tokens on rank 0 only, as a clock could."""

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Any:
        return torch.tensor([dist.get_rank() == 0 and input_ids.shape[1] >= 18] * len(input_ids))


class BreaksOnRank1:
    """A streamer that fails on one rank after the prompt."""

    num_chunks = 0

    def put(self, tokens: Tensor) -> None:
        self.num_chunks += 1
        if dist.get_rank() == 1 and self.num_chunks > 2:
            raise OSError("no terminal")

    def end(self) -> None:
        """Nothing to end."""


def error_of(run: Any, *args: Any, **kwargs: Any) -> tuple[str, str]:
    """Its error's class and message."""
    try:
        run(*args, **kwargs)
    except (TreespecError, OSError) as error:
        return type(error).__name__, str(error)
    return "", ""


def learned(control: Any) -> Any:
    """The control's expected acceptance by candidate, and time by number of nodes, after ranks measured other times."""
    learned = control._learned
    return learned.acceptance.expected, [learned.passes.predict(tokens, 2, 16) for tokens in (2, 16)]


def speculations(draft: Any, tensor_parallel_draft: Any) -> dict[str, TreeSpeculation]:
    return {
        "recycling": TreeSpeculation(TokenRecycling(), tree=8),
        "draft model": TreeSpeculation(draft, tree=8),
        "tensor parallel draft model": TreeSpeculation(tensor_parallel_draft, tree=KAry((2, 2))),
        "control": TreeSpeculation(draft, tree=Control(pass_ms=PASS_MS)),
    }


def observe(folder: str, draft_folder: str) -> dict[str, Any]:
    """All that the tests look at, on one rank."""
    rank = dist.get_rank()
    torch.manual_seed(rank)  # Ranks need not have the same seeds.
    model, ids = split(folder), prompt(2)
    draft = AutoModelForCausalLM.from_pretrained(draft_folder).eval()
    ranks = ranks_of(model)
    assert isinstance(ranks, Ranks)
    found: dict[str, Any] = {"logits": model(input_ids=ids).logits.tolist()}
    split_draft = split(draft_folder)
    for name, speculation in speculations(draft, split_draft).items():
        out = model.generate(ids, **OPTIONS, custom_generate=speculation)
        found[f"{name}, greedy"] = out.tolist(), speculation.stats.num_target_passes, dict(speculation.stats.choices)
        if name == "control":
            found["learned"] = learned(speculation.options.policy)
        if "draft model" in name:
            found[f"{name}, sampled"] = model.generate(ids, **SAMPLED, custom_generate=speculation).tolist()
    for name in SEEDED:
        speculation = speculations(draft, split_draft)[name]
        speculation.options = replace(speculation.options, seed=7)
        found[f"{name}, with a seed"] = model.generate(ids, **SAMPLED, custom_generate=speculation).tolist()
    own = TreeSpeculation(OwnTrees(), tree=8)
    found["own trees"] = model.generate(ids, **OPTIONS, custom_generate=own).tolist()
    lookup = TreeSpeculation(SuffixLookup(), tree=8)
    broken = TreeSpeculation(lookup.drafter, tree=8, streamer=BreaksOnRank1())
    other_trees = TreeSpeculation(split_draft, tree=KAry(((2, 2), (3, 1))[rank]))
    stopping = {"custom_generate": lookup, "stopping_criteria": [StopsOnRank0()]}
    found["stopped"] = model.generate(ids[:1], **OPTIONS, **stopping).shape[1]
    static = {"custom_generate": lookup, "cache_implementation": "static"}
    found["static"] = model.generate(ids, **OPTIONS, **static).tolist()
    found["errors"] = {
        "prompts": error_of(model.generate, ids[: 1 + rank], **OPTIONS, custom_generate=lookup),
        "passes": error_of(model.generate, ids, **OPTIONS, custom_generate=other_trees),
        "one rank": error_of(model.generate, ids[:1], **OPTIONS, custom_generate=broken),
        "order": error_of(ranks.check, "tree", lambda: 1) if rank else error_of(ranks.agree, "seed", 1),
        "optimize": error_of(optimize, model),
    }
    found["after errors"] = model.generate(ids, **OPTIONS, custom_generate=lookup).tolist()
    found["long"] = ranks.agree("text", "x" * (2 * ROW_BYTES + rank))
    with patch.object(sys.modules[pass_profile.__module__], "MOST_SECONDS", 0.0):
        found["pass times"] = pass_profile(model).pass_ms
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    found["weights"] = whole_weight(embedding).tolist(), whole_weight(head).tolist()
    found["local share"] = local_part(head.weight).numel() / head.weight.numel()
    facts = model_facts(model)
    found["facts"] = facts.ranks is ranks, ranks.size, ranks.index
    return found


@pytest.fixture(scope="module")
def target() -> Any:
    return tiny_llama()


@pytest.fixture(scope="module")
def draft(target: Any) -> Any:
    return noisy_copy(target)


@pytest.fixture(scope="module")
def found(target: Any, draft: Any, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Observations of both ranks."""
    folder = tmp_path_factory.mktemp("models")
    target.save_pretrained(folder / "target")
    draft.save_pretrained(folder / "draft")
    return on_two_ranks(observe, str(folder / "target"), str(folder / "draft"))


NAMES = list(speculations(tiny_llama(), tiny_llama()))
SEEDED = [name for name in NAMES if name != "tensor parallel draft model"]


@pytest.mark.parametrize("name", NAMES)
def test_greedy_tokens_are_those_of_one_process(name: str, target: Any, found: list[dict[str, Any]]) -> None:
    plain = target.generate(prompt(2), **OPTIONS, do_sample=False).tolist()
    assert found[0][f"{name}, greedy"][0] == plain
    assert found[0][f"{name}, greedy"] == found[1][f"{name}, greedy"]  # Passes and choices too.
    if name not in ("recycling", "control"):  # They may draft nothing: measured times decide.
        assert found[0][f"{name}, greedy"][1] < 12
        assert found[0][f"{name}, sampled"] == found[1][f"{name}, sampled"]  # From other random states.


@pytest.mark.parametrize("name", SEEDED)
def test_a_seed_gives_the_sample_of_one_process(
    name: str, target: Any, draft: Any, found: list[dict[str, Any]]
) -> None:
    speculation = speculations(draft, draft)[name]
    speculation.options = replace(speculation.options, seed=7)
    assert found[0][f"{name}, with a seed"] == found[1][f"{name}, with a seed"]
    if name != "control":  # Its trees, and with them the draws, depend on measured times.
        alone = target.generate(prompt(2), **SAMPLED, custom_generate=speculation).tolist()
        assert found[0][f"{name}, with a seed"] == alone


def test_drafts_clocks_and_measured_times_that_differ_are_rank_0s(target: Any, found: list[dict[str, Any]]) -> None:
    plain = target.generate(prompt(2), **OPTIONS, do_sample=False).tolist()
    assert found[0]["own trees"] == found[1]["own trees"] == plain
    assert found[0]["stopped"] == found[1]["stopped"] == 18
    assert found[0]["pass times"] == found[1]["pass times"] != {}
    assert found[0]["learned"] == found[1]["learned"]
    assert found[0]["static"] == found[1]["static"] == plain
    assert found[0]["long"] == found[1]["long"] == "x" * (2 * ROW_BYTES)


def test_logits_are_equal_to_the_last_bit_and_split_weights_are_gathered(
    target: Any, found: list[dict[str, Any]]
) -> None:
    assert found[0]["logits"] == found[1]["logits"]
    alone = target(input_ids=prompt(2)).logits
    torch.testing.assert_close(torch.tensor(found[0]["logits"]), alone, atol=1e-4, rtol=0)
    embedding, head = target.get_input_embeddings(), target.get_output_embeddings()
    assert found[0]["weights"] == found[1]["weights"] == (embedding.weight.tolist(), head.weight.tolist())
    assert found[0]["local share"] == 0.5
    assert [rank["facts"] for rank in found] == [(True, 2, 0), (True, 2, 1)]


def test_ranks_that_make_other_calls_get_an_error_by_name(target: Any, found: list[dict[str, Any]]) -> None:
    for rank in range(2):
        errors = found[rank]["errors"]
        assert errors["prompts"][0] == errors["passes"][0] == errors["order"][0] == RanksDisagreeError.__name__
        assert "another call" in errors["prompts"][1]
        assert "another pass" in errors["passes"][1]
        assert "rank 0 is at seed, rank 1 is at tree" in errors["order"][1]
        assert errors["optimize"][0] == UnsupportedModelError.__name__
        assert "split over processes" in errors["optimize"][1]
    assert found[1]["errors"]["one rank"] == ("OSError", "no terminal")
    assert found[0]["errors"]["one rank"][0] == RanksDisagreeError.__name__
    assert "rank 1: OSError: no terminal" in found[0]["errors"]["one rank"][1]
    plain = target.generate(prompt(2), **OPTIONS, do_sample=False).tolist()
    assert found[0]["after errors"] == found[1]["after errors"] == plain


class Mesh:
    """A device mesh with the attributes that are read of it."""

    mesh_dim_names, ndim = ("fsdp", "tp"), 2

    def __init__(self, *shape: int) -> None:
        self.shape = shape

    def size(self) -> int:
        return self.shape[0] * self.shape[1]


def test_other_kinds_of_parallelism_are_refused_by_name() -> None:
    model = tiny_llama()
    model._device_mesh = Mesh(1, 1)  # pyright: ignore[reportAttributeAccessIssue]
    assert isinstance(ranks_of(model), Alone)
    model._device_mesh = Mesh(2, 2)  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(UnsupportedModelError, match="'fsdp'"):
        model.generate(prompt(), **OPTIONS, custom_generate=TreeSpeculation(SuffixLookup()))


@pytest.mark.slow
def test_the_example_runs_under_torchrun() -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    script = str(ROOT / "examples" / "tensor_parallel.py")
    out = subprocess.run([*command, script], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert out.returncode == 0, out.stderr[-3000:]
    assert out.stdout.count("identical to plain generate: True") == 1
