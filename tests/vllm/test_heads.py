"""EAGLE-3 heads in vLLM: rows that join and leave are drafted as one text alone is; the output stays vLLM's."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.engines import churn
from helpers.engines.churn import ENGINE, compared
from helpers.engines.engine import MODEL, PROMPTS, run_jobs
from helpers.engines.models import random_adapters
from helpers.engines.server import (
    NUM_NODES,
    SIZE,
    VOCAB,
    ServedTarget,
    Server,
    alone,
    num_like_alone,
    paths_of,
    states_of,
)

from treespec.cpu import native
from treespec.cpu.linear_kernels import has_fast_linears
from treespec.errors import CheckpointError, ConfigError
from treespec.heads import Eagle3
from treespec.heads.eagle3.module import Eagle3Config, Eagle3Head
from treespec.heads.modules.layers import LayerConfig
from treespec.testing import enumerate_continuations, g_test, uncached
from treespec.tree import TreeBatch, Verdict
from treespec.vllm import pages, readers
from treespec.vllm.drafting import Drafting, ServedRow
from treespec.vllm.files import Files
from treespec.vllm.heads import ServedHead, load_served_head
from treespec.vllm.options import Options

OPTIONS = Options(7, "head", NUM_NODES, head="given")
TINY = SimpleNamespace(model="tiny", revision=None)


def random_head(num_drafted: int = VOCAB) -> Eagle3Head:
    """Output rows of fewer tokens are a map of their embeddings: the texts' other tokens are drafted too."""
    torch.manual_seed(0)
    config = Eagle3Config(LayerConfig(SIZE, 24, 2, 1, 8), VOCAB, num_drafted, SIZE, num_features=1)
    head = Eagle3Head(config, torch.randn(VOCAB, SIZE), torch.arange(num_drafted)).double()
    for weight in head.parameters():
        torch.nn.init.normal_(weight, std=0.4)
    if num_drafted < VOCAB:
        head.lm_head.weight.data = (head.embedding @ torch.randn(SIZE, SIZE, dtype=torch.float64) / 8)[:num_drafted]
    return head.requires_grad_(False)


def served(seed: int, skipped: float = 0.0, num_drafted: int = VOCAB) -> Server:
    return Server(OPTIONS, seed, ServedHead(random_head(num_drafted), [0]), skipped, states_of)


@pytest.mark.parametrize(("seed", "skipped", "num_drafted"), [(0, 0, VOCAB), (3, 0.6, 24)])
def test_every_row_is_drafted_as_if_alone(
    seed: int, skipped: float, num_drafted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "SHORT", 8)
    drafter = Eagle3(random_head(num_drafted), [0])

    def expected(text: list[int], depth: int) -> TreeBatch:
        return alone(drafter, text, depth, prompt_states={0: states_of(text[:-1]).unsqueeze(0)})

    assert num_like_alone(served(seed, skipped, num_drafted), 25 if skipped == 0 else 50, expected) > 30


class Resting:
    """Requests with a head, whose steps each compute some tokens of every text."""

    def __init__(self) -> None:
        self.reader, self.texts = ServedHead(random_head(), [0]), dict[str, list[int]]()
        self.reader.make_pages(100, 4)
        self.drafting = Drafting(OPTIONS, VOCAB, reader=self.reader)
        self.tables = np.arange(100).reshape(2, 50)

    def compute(self, name: str, num_tokens: int) -> None:
        """A pass over this many tokens of a text, and the token that follows them."""
        text, row = self.texts.setdefault(name, [1, 2, 3]), len(name) - 1
        first, new = len(text) - 1, np.random.default_rng(len(text)).integers(0, VOCAB, num_tokens).tolist()
        self.texts[name] = text = text + new
        states, positions = states_of(text)[first:-1], np.arange(first, len(text) - 1)
        self.reader.pages.write(num_tokens, lambda: (states, self.tables[[row] * num_tokens], positions))

    def draft(self) -> TreeBatch:
        rows = []
        for number, (name, text) in enumerate(self.texts.items()):
            rows.append(ServedRow(name, number, Verdict((0,), text[-1], True), text[-1:], text.copy, len(text), 50))
        roots = TreeBatch(torch.zeros(len(rows), 1, dtype=torch.int64), torch.full((len(rows), 1), -1))
        self.drafting.update(rows, roots, torch.zeros(len(rows), VOCAB), list(range(len(rows))))
        return self.drafting.propose(rows, self.tables)


def test_after_a_long_rest_a_head_reads_from_where_its_pages_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "MOST_WAITING", 16)
    resting = Resting()
    resting.compute("a", 10)
    resting.draft()
    assert resting.reader._keys.lengths == [10]  # The first two tokens are in no pass.
    for _ in range(20):  # When 17 tokens wait 8 are kept, the last time before 5 more.
        resting.compute("a", 1)
        resting.compute("bb", 1)
    fused, fuse = [], resting.reader.pages._fuse_states
    monkeypatch.setattr(resting.reader.pages, "_fuse_states", lambda states: fused.append(len(states)) or fuse(states))
    trees = resting.draft()
    assert fused == [13]
    assert resting.reader._keys.lengths[:2] == [10 + 6, 7]
    assert resting.reader._unread.offsets == [2 + 20 - 6, 2 + 20 - 7]
    text = resting.texts["bb"]
    expected = alone(Eagle3(random_head(), [0]), text, prompt_states={0: states_of(text[:-1])[-7:].unsqueeze(0)})
    assert paths_of(trees, 1) == pytest.approx(paths_of(expected, 0), rel=1e-3)


def test_what_another_request_left_in_forgotten_blocks_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "MOST_WAITING", 16)
    resting = Resting()
    resting.compute("a", 10)
    resting.draft()
    del resting.texts["a"]
    resting.tables[1] = resting.tables[0]
    for num_tokens in (10, *[1] * 7):  # Seventeen: the ten are forgotten.
        resting.compute("bb", num_tokens)
    resting.draft()
    assert resting.reader._unread.offsets == [2 + 10]


def test_of_a_long_text_the_end_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "MOST_READ", 10)
    server = served(5)
    for _ in range(5):
        server.step()
    assert max(server.reader._unread.offsets) > 0
    assert max(server.reader._keys.lengths) < 10 + 3 * 5


@pytest.mark.slow
def test_requests_come_and_go(folders: tuple[str, str]) -> None:
    speculation = {"method": "eagle3", "model": folders[1], "num_speculative_tokens": 3, "tree": 8}
    assert compared(folders[0], speculation)["stats"]["num_accepted_tokens"] > 10


@pytest.mark.slow
def test_two_adapters_and_the_base_model_share_batches_and_a_head(folders: tuple[str, str], tmp_path: Path) -> None:
    """In chunks; then the same prompts under other adapters, then blocks of the prefix cache."""
    model, head = folders
    adapters = [None, *map(str, random_adapters(tmp_path, Path(model), 2))]
    prompts = np.random.default_rng(0).integers(0, churn.VOCAB, (12, 34)).tolist()
    params = {"temperature": 0, "max_tokens": 16, "ignore_eos": True, "detokenize": False, "logprobs": 2}
    jobs = {
        name: {"prompts": prompts, "params": params, "adapters": (adapters[shift:] + adapters[:shift]) * 4}
        for name, shift in (("first", 0), ("shifted", 1), ("cached", 0))
    }
    engine = {**ENGINE, "model": model, "enable_lora": True, "max_lora_rank": 8, "max_loras": 3}  # See docs/vllm.md.
    trees = run_jobs({**engine, "speculative_config": {"method": "treespec", "tree": 8, "head": head}}, jobs)
    plain = run_jobs(engine, jobs)
    assert trees["stats"]["num_trees"] > 10
    assert [one["ids"] for one in plain["first"]] != [one["ids"] for one in plain["shifted"]]
    assert {name: trees[name] for name in jobs} == {name: plain[name] for name in jobs}


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


def test_on_cpus_a_heads_products_are_faster_ones_up_to_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    """In 8 bits; without a compiler for them in 16, which oneDNN multiplies."""

    def no_compiler() -> list[str]:
        raise native.NativeError("none")

    monkeypatch.setattr(native, "find_compilers", no_compiler)
    for made in (native.native_linear, native.int8_linear, native.bfloat16_linear, native.native_norm):
        made.cache_clear()
    asked, optimize = [], readers.optimize
    monkeypatch.setattr(readers, "optimize", lambda *args, **how: asked.append(how["dtype"]) or optimize(*args, **how))
    torch.manual_seed(0)
    head = torch.nn.Sequential(torch.nn.Linear(32, 48), torch.nn.Linear(48, 16, bias=False))
    inputs = torch.randn(2, 3, 32)
    with torch.no_grad():
        expected = head(inputs)
        readers.speed_up_head(head)
        torch.testing.assert_close(head(inputs), expected, atol=0.05, rtol=0.05)
    assert has_fast_linears(head)
    assert asked[:2] == [torch.int8, torch.bfloat16]
    exact = torch.nn.Linear(4, 4).double()
    readers.speed_up_head(exact)
    assert not has_fast_linears(exact)


def test_heads_of_other_models_and_models_without_states_are_refused(folders: tuple[str, str]) -> None:
    files = Files(pytest.importorskip("vllm.config").LoadConfig())
    target, narrow = (ServedTarget(torch.nn.Embedding(churn.VOCAB, size)) for size in (64, 32))
    assert load_served_head(folders[1], target, TINY, files).hidden_layers == (1, 0)
    with pytest.raises(CheckpointError, match="another model"):
        load_served_head(folders[1], narrow, TINY, files)
    with pytest.raises(CheckpointError, match="no head for"):
        load_served_head("nothing", target, TINY, files)
    with pytest.raises(ConfigError, match="Embedding does not return hidden states"):
        load_served_head(folders[1], torch.nn.Embedding(1, 1), TINY, files)
