"""EAGLE-3 heads in vLLM: rows that join and leave are drafted as one text alone is; the output stays vLLM's."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.engines import churn
from helpers.engines.churn import ENGINE, random_requests
from helpers.engines.engine import MODEL, PROMPTS, run_jobs
from helpers.engines.models import random_adapters

from treespec import BestFirst, TokenTree, Verdict
from treespec.errors import CheckpointError, ConfigError
from treespec.heads import Eagle3
from treespec.heads.eagle3.module import Eagle3Config, Eagle3Head
from treespec.heads.modules.layers import LayerConfig
from treespec.protocols import Session
from treespec.sampling import NoProcessors
from treespec.testing import enumerate_continuations, g_test, uncached
from treespec.tree import TreeBatch
from treespec.tree.history import History
from treespec.vllm import heads
from treespec.vllm.drafting import EAGER_STEPS, Drafting, ServedRow
from treespec.vllm.head_products import pack_products
from treespec.vllm.heads import FeaturePages, ServedHead, load_served_head
from treespec.vllm.options import Options

VOCAB, SIZE, BLOCK, NUM_BLOCKS = 11, 16, 4, 2000


def random_head() -> Eagle3Head:
    torch.manual_seed(0)
    config = Eagle3Config(LayerConfig(SIZE, 24, 2, 1, 8), VOCAB, VOCAB, SIZE, num_features=1)
    head = Eagle3Head(config, torch.randn(VOCAB, SIZE), torch.arange(VOCAB)).double()
    for weight in head.parameters():
        torch.nn.init.normal_(weight, std=0.4)
    return head.requires_grad_(False)


def states_of(text: list[int]) -> torch.Tensor:
    """Hidden states [n, H] of a pretended target: they depend on the tokens so far."""
    tokens = torch.tensor(text, dtype=torch.float64)
    sums = torch.stack([tokens.cumsum(0), tokens], 1)
    return torch.sin(sums @ torch.linspace(0.1, 2, 2 * SIZE, dtype=torch.float64).view(2, SIZE))


class Server:
    """Requests that come, pause and leave; a request's pages are written as its tokens are computed."""

    def __init__(self, head: Eagle3Head, seed: int, skipped: float = 0.0) -> None:
        self.skipped = skipped
        self.rng = np.random.default_rng(seed)
        self.head, self.texts, self.tables = ServedHead(head, [0]), {}, {}
        self.head.pages = self.pages = FeaturePages(NUM_BLOCKS, BLOCK, head)
        self.drafting = Drafting(Options(7, "head", 8, head="given"), VOCAB, head=self.head)
        self.blocks = list(range(NUM_BLOCKS))
        self.rng.shuffle(self.blocks)

    def step(self) -> tuple[list[ServedRow], TreeBatch]:
        for _ in range(int(self.rng.integers(0, 3))):
            name = f"r{len(self.tables)}"
            self.texts[name] = self.rng.integers(0, VOCAB, int(self.rng.integers(1, 60))).tolist()
            self.tables[name] = [self.blocks.pop() for _ in range(40)]
        for name in [name for name in self.texts if self.rng.random() < 0.1]:
            self.blocks += self.tables[name]
            del self.texts[name]
        active = [name for name in self.texts if self.rng.random() < 0.8]
        if not active:
            return self.step()
        self.rng.shuffle(active)
        rows, tables = [], np.array([self.tables[name] for name in active])
        for number, name in enumerate(active):
            emitted = self.rng.integers(0, VOCAB, int(self.rng.integers(1, 4))).tolist()
            text = self.texts[name] = self.texts[name] + emitted
            known = np.arange(len(text) - 1)
            self.pages.write(states_of(text[:-1]), tables[[number] * len(known)], known)
            verdict = Verdict(tuple(range(len(emitted))), emitted[-1], False)
            rows.append(ServedRow(name, number, verdict, emitted, lambda text=text: list(text), len(text), 50))
        trees = TreeBatch(torch.zeros(len(rows), 3, dtype=torch.int64), torch.tensor([[-1, 0, 1]] * len(rows)))
        logits = torch.zeros(3 * len(rows), VOCAB)
        if self.rng.random() < self.skipped:  # As after many plain steps.
            self.drafting._num_plain = EAGER_STEPS
            assert self.drafting.skip(rows)
            return rows, trees
        unread = self.drafting.num_unread(rows)
        self.drafting.update(rows, trees, logits, list(range(0, 3 * len(rows), 3)))
        assert unread == sum(self.head.unread)
        return rows, self.drafting.propose(rows, tables) if self.rng.random() < 0.7 else trees


def alone(head: Eagle3Head, text: list[int]) -> TreeBatch:
    """The draft of the transformers engine's drafter for one text."""
    drafter, ids = Eagle3(head, [0]), torch.tensor([text])
    session = Session(
        History(ids, torch.ones_like(ids, dtype=torch.bool)), False, NoProcessors(), torch.Generator(),
        torch.device("cpu"), VOCAB, [0], BestFirst(8, child_share=0.4), {0: states_of(text[:-1]).unsqueeze(0)},
    )  # fmt: skip
    drafter.start(session)
    return drafter.propose(49)


def paths_of(tree: TokenTree) -> list[tuple[int, ...]]:
    return sorted(tuple(tree.token(node) for node in tree.path_to(leaf)) for leaf in range(tree.num_nodes))


@pytest.mark.parametrize(("seed", "skipped", "most_waiting"), [(0, 0, 1), (1, 0, 40), (2, 0, 512), (3, 0.6, 40)])
def test_every_row_is_drafted_as_if_alone(
    seed: int, skipped: float, most_waiting: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heads, "SHORT", 8)
    monkeypatch.setattr(heads, "MOST_WAITING", most_waiting)
    head, num_compared = random_head(), 0
    server = Server(head, seed, skipped)
    for _ in range(25 if skipped == 0 else 60):
        rows, trees = server.step()
        for row, tree in zip(rows, trees.trees, strict=True):
            if trees.values is None:
                continue
            (expected,) = alone(head, server.texts[row.request]).trees
            assert paths_of(tree) == paths_of(expected)
            num_compared += 1
    assert num_compared > 30


def test_of_a_long_text_the_end_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads, "MOST_READ", 10)
    server = Server(random_head(), 5)
    for _ in range(5):
        server.step()
    assert max(server.head._unread.offsets) > 0
    assert max(server.head._keys.lengths) < 10 + 3 * 5


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"method": "eagle3", "model": "head", "num_speculative_tokens": 3, "tree": 8},
        {"method": "treespec", "head": "head", "num_speculative_tokens": 7, "tree": 8},
        {"method": "treespec", "head": "head", "num_speculative_tokens": 7},
    ],
    ids=["vLLM's EAGLE-3, trees of 8", "merged, trees of 8", "merged, auto"],
)
def test_requests_come_and_go(folders: tuple[str, str], options: dict[str, Any]) -> None:
    pytest.importorskip("vllm.config")
    model, head = folders
    jobs = {"churn": {"churn": random_requests(150, churn.VOCAB, seed=1), "has_aborts": False}}
    engine = {**ENGINE, "model": model}
    plain = run_jobs({**engine, "num_gpu_blocks_override": 10}, jobs)
    speculation = {name: head if value == "head" else value for name, value in options.items()}
    trees = run_jobs({**engine, "num_gpu_blocks_override": 13, "speculative_config": speculation}, jobs)
    assert trees["churn"]["outputs"] == plain["churn"]["outputs"]
    assert trees["metrics"]["vllm:num_preemptions"] > 0
    if "tree" in options:  # "auto" drafts by measured times, and a tiny model's plain steps are hard to beat.
        assert trees["stats"]["num_accepted_tokens"] > 10


@pytest.mark.slow
def test_a_head_drafts_for_adapters_and_the_base_model(folders: tuple[str, str], tmp_path: Path) -> None:
    pytest.importorskip("vllm.config")
    model, head = folders
    adapters = [None, *map(str, random_adapters(tmp_path, Path(model), 2))]
    prompts = np.random.default_rng(0).integers(0, churn.VOCAB, (12, 9)).tolist()
    params = {"temperature": 0, "max_tokens": 16, "ignore_eos": True, "detokenize": False, "logprobs": 2}
    jobs = {"greedy": {"prompts": prompts, "params": params, "adapters": adapters * 4}}
    engine = {**ENGINE, "model": model, "enable_lora": True, "max_lora_rank": 8, "max_loras": 3}  # See docs/vllm.md.
    speculation = {"method": "treespec", "tree": 8, "drafter": "head", "head": head}
    trees = run_jobs({**engine, "speculative_config": speculation}, jobs)
    assert trees["stats"]["num_trees"] > 10
    assert trees["greedy"] == run_jobs(engine, jobs)["greedy"]


@pytest.mark.slow
def test_samples_of_one_token_after_another_follow_the_models_distribution(folders: tuple[str, str]) -> None:
    pytest.importorskip("vllm.config")
    from transformers import AutoModelForCausalLM

    model, head = folders
    number, prompt = 3000, [1, 3, 0, 2, 4, 1]
    params = {"temperature": 0.6, "top_k": 4, "max_tokens": 3, "ignore_eos": True, "detokenize": False}
    speculation = {"method": "treespec", "tree": 8, "drafter": "head", "head": head}
    engine = {**ENGINE, "model": model, "max_num_seqs": 32, "speculative_config": speculation}
    found = run_jobs(engine, {"sampled": {"prompts": [prompt] * number, "params": params}})
    assert found["stats"]["num_accepted_tokens"] > number / 20
    target = AutoModelForCausalLM.from_pretrained(model)

    def top(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return (scores / 0.6).masked_fill(scores < scores.topk(4).values[:, -1:], -torch.inf)

    exact = enumerate_continuations(uncached(target, torch.tensor(prompt), top), 3).joint
    assert g_test(Counter(tuple(one["ids"]) for one in found["sampled"]), exact) > 1e-4


@pytest.mark.slow
@pytest.mark.skipif(not MODEL.is_dir(), reason="SmolLM2 is not converted: make demo")
def test_the_head_that_ships_drafts_for_its_model() -> None:
    pytest.importorskip("vllm.config")
    params = {"temperature": 0, "max_tokens": 24, "ignore_eos": True}
    jobs = {"greedy": {"prompts": PROMPTS, "params": params}}
    engine = {"model": str(MODEL), "max_model_len": 256, "max_num_seqs": 4}
    speculation = {"method": "treespec", "tree": 16, "drafter": "head", "head": "SmolLM2-135M-Instruct"}
    trees = run_jobs({**engine, "speculative_config": speculation}, jobs)
    assert trees["greedy"] == run_jobs(engine, jobs)["greedy"]
    assert trees["stats"]["mean_acceptance_length"] > 2


def test_packed_products_are_those_of_the_module_up_to_rounding() -> None:
    torch.manual_seed(0)
    head, inputs = (
        torch.nn.Sequential(torch.nn.Linear(32, 48), torch.nn.Linear(48, 16, bias=False)),
        torch.randn(2, 3, 32),
    )
    with torch.no_grad():
        expected = head(inputs)
        pack_products(head)
        torch.testing.assert_close(head(inputs), expected, atol=0.05, rtol=0.05)
        assert head(inputs).dtype == torch.float32
    assert "forward" in vars(head[0])
    exact = torch.nn.Linear(4, 4).double()
    pack_products(exact)
    assert "forward" not in vars(exact)


class Pretended(torch.nn.Module):
    """A model of vLLM's as far as a head asks."""

    def __init__(self, hidden: int = 64) -> None:
        super().__init__()
        self.embed_tokens, self.layers = torch.nn.Embedding(churn.VOCAB, hidden), [None] * 2
        vars(self.embed_tokens)["org_vocab_size"] = churn.VOCAB

    @property
    def model(self) -> torch.nn.Module:
        return self

    def set_aux_hidden_state_layers(self, layers: tuple[int, ...]) -> None: ...


def test_heads_of_other_models_and_models_without_states_are_refused(
    tmp_path: Path, folders: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def offline(name: str, allow_patterns: list[str]) -> str:
        raise OSError(f"{name} is not in the cache: {allow_patterns}")

    monkeypatch.setattr(heads, "snapshot_download", offline)
    assert load_served_head(folders[1], Pretended(), "tiny").hidden_layers == (1, 0)
    with pytest.raises(CheckpointError, match="another model"):
        load_served_head(folders[1], Pretended(32), "tiny")
    with pytest.raises(CheckpointError, match="no head for"):
        load_served_head("nothing", Pretended(), "tiny")
    for name, message in (("an/owner", "no head for 'an/owner'.*; nor can it be fetched"), ("nothing", "no head for")):
        with pytest.raises(CheckpointError, match=message):
            heads.find_folder(name)
    with pytest.raises(ConfigError, match="Embedding does not return hidden states"):
        load_served_head(folders[1], torch.nn.Embedding(1, 1), "tiny")
