"""`treespec generate` and `treespec chat`."""

import json

import pytest
import torch
from helpers.cli import invoke, succeed
from helpers.written import TARGET, TOKENIZER
from transformers import MistralConfig, MistralForCausalLM

import treespec
from treespec.commands.chat import Conversation
from treespec.commands.models import Loaded
from treespec.commands.stream import Stream
from treespec.drafters import Merge

LOADED = Loaded(TARGET, TOKENIZER, "toy")
SHORT = ("--max-new-tokens", "12", "--tree", "6")


def plain(messages, raw=None, num_new=12):
    inputs = LOADED.encode(messages, raw)
    out = TARGET.generate(**inputs, max_new_tokens=num_new, do_sample=False)
    return TOKENIZER.decode(out[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)


@pytest.mark.parametrize("source", ["--prompt", "--file", "stdin"])
def test_the_text_is_plain_generates(saved, tmp_path, source):
    (tmp_path / "question.txt").write_text("What is this?")
    given = {"--prompt": ["--prompt", "What is this?"], "--file": ["--file", tmp_path / "question.txt"], "stdin": []}
    found = json.loads(succeed("generate", saved, *given[source], *SHORT, "--json", input="What is this?").stdout)
    assert found["text"] == plain([{"role": "user", "content": "What is this?"}])
    assert sum(found["tokens_by_drafter"].values()) == found["num_tokens"]
    assert found["tokens_per_pass"] >= 1


def test_the_text_is_streamed_with_statistics_and_colours(saved):
    done = succeed("generate", saved, "--prompt", "Again and again and", "--raw", *SHORT, "--colours")
    assert plain([], raw="Again and again and").strip() in done.stdout
    assert "tokens per model pass, " in done.output
    assert "tokens by: " in done.output


def test_sampling_repeats_by_its_seed(saved):
    options = ("--prompt", "Why?", *SHORT, "--json", "--temperature", "1.5", "--seed", "4", "--drafter", "suffix")
    texts = [json.loads(invoke("generate", saved, *options).stdout)["text"] for _ in range(2)]
    assert texts[0] == texts[1] != plain([{"role": "user", "content": "Why?"}])


@pytest.mark.parametrize("num_nodes", [8, 2], ids=["whole", "most nodes are cut off"])
def test_accepted_tokens_have_their_drafter(num_nodes):
    ids = torch.tensor([[5, 6, 7, 8] * 6])
    merge = Merge([treespec.TokenRecycling(), treespec.SuffixLookup()], num_nodes=num_nodes)
    speculation = treespec.TreeSpeculation(merge, tree=8)
    stream = Stream(TOKENIZER, speculation.drafter, None)
    treespec.generate(TARGET, ids, speculation, streamer=stream, max_new_tokens=24, eos_token_id=None)
    assert stream.counts.total() == 24
    assert stream.counts.total() - stream.counts["target"] == speculation.stats.num_accepted_tokens
    assert set(stream.counts) <= {"TokenRecycling", "SuffixLookup", "target"}


def test_a_conversation_reuses_its_cache():
    speculation = treespec.TreeSpeculation(treespec.SuffixLookup(), tree=6)
    talk = Conversation(LOADED, speculation, {"do_sample": False, "max_new_tokens": 8}, "Be brief.")
    messages, read = [{"role": "system", "content": "Be brief."}], 0
    for message in ("What is this?", "And that?", "Why?"):
        messages.append({"role": "user", "content": message})
        answer = talk.answer(message, None)
        assert answer == plain(messages, num_new=8)
        assert talk.num_reused >= read, "what the last turn read is not read again"
        read = LOADED.encode(messages)["input_ids"].shape[1]
        messages.append({"role": "assistant", "content": answer})
    assert talk.num_reused > 40


def test_a_conversation_beyond_the_sliding_window_is_cut_too():
    """transformers' own windowed layers drop tokens and refuse to be cut; those that speculation returns keep all."""
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    ids = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0, "vocab_size": TARGET.config.vocab_size}
    torch.manual_seed(0)
    config = MistralConfig(**sizes, **ids, num_key_value_heads=2, sliding_window=16, initializer_range=0.3)
    loaded = Loaded(MistralForCausalLM(config).eval(), TOKENIZER, "toy")
    speculation = treespec.TreeSpeculation(treespec.SuffixLookup(), tree=6)
    talk = Conversation(loaded, speculation, {"do_sample": False, "max_new_tokens": 8}, None)
    for message in ("What is this?", "And that?"):
        inputs = loaded.encode([*talk.messages, {"role": "user", "content": message}])
        out = loaded.model.generate(**inputs, max_new_tokens=8, do_sample=False)
        new = out[0, inputs["input_ids"].shape[1] :]
        assert talk.answer(message, None) == TOKENIZER.decode(new, skip_special_tokens=True)
        talk.messages[-1]["content"] = "something else"  # The next prompt does not begin with all that was cached.
    assert talk.num_reused > 16


def test_chat_reads_lines(saved):
    done = succeed("chat", saved, "--max-new-tokens", "6", "--tree", "6", input="Hello\n\n/new\nHello\n/quit\n")
    assert done.stderr.count("per model pass") == 2
    done = invoke("chat", saved, "--max-new-tokens", "6", "--tree", "6", "--json", input="Hello\nWhy?\n")
    assert [json.loads(line)["num_tokens"] for line in done.stdout.splitlines()] == [6, 6]
