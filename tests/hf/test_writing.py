"""Text that a model writes by itself: its own continuations after its own template, and the command around it."""

import copy
import json
import re
from dataclasses import replace

import pytest
import torch
from grown_trees import g_test
from helpers.text_tokenizers import byte_level
from helpers.tiny import tiny_llama
from safetensors.torch import load_file
from toy_models import TableLM, ToyScorer
from transformers import GPT2Config, GPT2LMHeadModel
from typer.testing import CliRunner

from treespec.cli import app, main
from treespec.data.tensor_file import write_tensors
from treespec.drafters import WarmStart
from treespec.errors import CheckpointError, ConfigError
from treespec.hf import TreeScorer
from treespec.training.text.chat import Turns, chat_turns, end_tokens, read_prompts
from treespec.training.text.texts import FORMAT, Texts, read_folder, read_texts, save_texts
from treespec.training.text.warm_up import warm_up
from treespec.training.text.writing import Message, Writing, draw, write_batch, write_texts

TEMPLATE = (
    "{% for m in messages %}<s>{{ m['role'] }}\n{{ m['content'] }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)
END = 2  # </s>


def chat_tokenizer():
    tokenizer = copy.deepcopy(byte_level(400))
    tokenizer.chat_template = TEMPLATE
    return tokenizer


TOKENIZER = chat_tokenizer()
TARGET = tiny_llama(vocab_size=len(TOKENIZER), seed=5, eos_token_id=END)
WRITING = Writing(
    message_temperature=1.5, temperatures=(0.0, 1.0), max_message=6, max_length=30, batch_size=8, num_candidates=3
)


def spell(text):
    return TOKENIZER(text, add_special_tokens=False)["input_ids"]


def split(texts):
    lengths = texts.lengths.tolist()
    return list(zip(texts.tokens.split(lengths), texts.top.split(lengths), strict=True))


def test_turns_are_the_templates_own_tokens():
    turns = chat_turns(TOKENIZER)
    assert turns == Turns(spell("<s>user\n"), spell("</s>\n<s>assistant\n"))
    assert chat_turns(byte_level(400)) == Turns([1], []), "without a template a text begins as texts do"
    mute = chat_tokenizer()
    mute.chat_template = "{{ 'Hello' }}"
    with pytest.raises(ConfigError, match="does not show the user's message"):
        chat_turns(mute)
    bare = copy.deepcopy(byte_level(400))
    bare.bos_token = bare.eos_token = None
    with pytest.raises(ConfigError, match="no first token"):
        chat_turns(bare)


def test_texts_are_the_models_own():
    turns, given = chat_turns(TOKENIZER), spell("What is a licence?")
    counts, messages = [], [Message(given, is_open=False), Message(), Message(), Message()]
    texts = write_batch(TreeScorer(TARGET), turns, [END], messages, WRITING, on_tokens=counts.append)
    assert int(texts.lengths.sum()) == len(texts.tokens) == len(texts.top)
    written = split(texts)
    assert len(written) == 4
    num_given = 3 * len(turns.opening) + len([*turns.opening, *given, *turns.reply])
    assert sum(counts) == len(texts.tokens) - num_given
    for number, (text, top) in enumerate(written):
        ids = text.tolist()
        assert ids[: len(turns.opening)] == turns.opening
        assert len(ids) <= WRITING.max_length
        plain = TARGET(text.unsqueeze(0)).logits[0]
        asked = top[:, 0] >= 0
        assert torch.equal(top[asked], plain.topk(3).indices[asked])
        prompt = [*turns.opening, *given, *turns.reply] if number == 0 else turns.opening
        assert asked.tolist() == [len(prompt) - 1 <= i < len(ids) - 1 for i in range(len(ids))]
        if number:
            message = re.match(r"<s>user\n(.*?)</s>\n<s>assistant\n", TOKENIZER.decode(ids), flags=re.DOTALL)[1]
            start = next(i for i in range(len(ids)) if ids[i : i + len(turns.reply)] == turns.reply)
            assert start - len(turns.opening) <= WRITING.max_message
            assert (message == "") == (start == len(turns.opening))
            start += len(turns.reply)
        else:
            start = len(prompt)
        if number % 2 == 0:  # a greedy answer
            options = {"do_sample": False, "max_length": WRITING.max_length, "max_new_tokens": None}
            assert TARGET.generate(text[:start].unsqueeze(0), **options)[0].tolist() == ids
        assert END not in ids[start:-1]
        assert len(ids) == WRITING.max_length or ids[-1] == END


def test_the_model_goes_on_with_openings(tmp_path):
    turns = chat_turns(TOKENIZER)
    writing = replace(WRITING, batch_size=4, temperatures=(1.0,), max_message=12)
    openings, given = ["Translate", "What is a"], "Hello there"
    texts = write_texts(TARGET, TOKENIZER, 200, tmp_path, prompts=[given], openings=openings, writing=writing)
    written = [text.tolist() for text, _ in split(texts)]
    assert len(written) > 4
    assert starts_with(written[0], [*turns.opening, *spell(given), *turns.reply])
    went_on = False
    for number, ids in enumerate(written[1:]):
        opening = [*turns.opening, *spell(openings[number % 2])]
        assert starts_with(ids, opening)
        replies = [i for i in range(len(ids)) if ids[i : i + len(turns.reply)] == turns.reply]
        assert not replies or replies[0] - len(turns.opening) <= writing.max_message
        went_on |= bool(replies) and replies[0] > len(opening)
    assert went_on
    again = write_texts(TARGET, TOKENIZER, 200, tmp_path, prompts=[given], openings=openings, writing=writing)
    assert torch.equal(again.tokens, texts.tokens)
    with pytest.raises(CheckpointError):
        write_texts(TARGET, TOKENIZER, 200, tmp_path, prompts=[given], openings=openings[::-1], writing=writing)


def test_text_of_another_model_is_not_gone_on_with(tmp_path):
    write_texts(TARGET, TOKENIZER, 50, tmp_path, writing=WRITING)
    other = tiny_llama(vocab_size=len(TOKENIZER), seed=6, eos_token_id=END)
    with pytest.raises(CheckpointError, match="another model"):
        write_texts(other, TOKENIZER, 50, tmp_path, writing=WRITING)


def test_without_a_template_an_opening_begins_the_text():
    message, writing = Message([3, 4]), Writing(temperatures=(1.0,), max_length=12, num_candidates=2)
    texts = write_batch(ToyScorer(TableLM(6)), Turns([1], []), [0], [message] * 3, writing)
    assert all(text.tolist()[:3] == [1, 3, 4] for text, _ in split(texts))


def starts_with(ids, beginning):
    return ids[: len(beginning)] == beginning


def test_rows_that_leave_do_not_disturb_the_others():
    """A scorer that rejects holes and repeated work; texts of a model without a template end one by one."""
    scorer = ToyScorer(TableLM(6))
    writing = Writing(temperatures=(1.0,), max_length=40, batch_size=1, num_candidates=2)
    texts = write_batch(scorer, Turns([1], []), [0], [Message()] * 24, writing)
    assert len(set(texts.lengths.tolist())) > 5
    for text, top in split(texts):
        for end in range(1, len(text)):
            expected = scorer.model.logits(tuple(text[:end].tolist())).topk(2).indices
            assert torch.equal(top[end - 1], expected)


def test_a_finished_text_waits_no_longer_than_the_model_has_positions():
    """One long message among 31 short ones ends its text first, and is too few to leave for by itself."""
    writing = Writing(temperatures=(1.0,), max_length=16, num_candidates=2)
    messages = [Message([4] * length, is_open=False) for length in (8, *[1] * 31)]
    scorers = [ToyScorer(TableLM(6), max_positions=limit) for limit in (15, None)]
    limited, free = (write_batch(scorer, Turns([1], [2, 3]), [7], messages, writing) for scorer in scorers)
    assert limited.lengths.tolist() == free.lengths.tolist() == [16] * 32
    with pytest.raises(ConfigError, match="max_length"):
        Writing(max_length=1)


def test_texts_are_no_longer_than_the_model_has_positions(tmp_path):
    config = GPT2Config(vocab_size=len(TOKENIZER), n_positions=16, n_embd=8, n_layer=1, n_head=1, eos_token_id=END)
    with pytest.raises(ConfigError, match="max_length is 18, the model has 16 positions"):
        write_texts(GPT2LMHeadModel(config).eval(), TOKENIZER, 10, tmp_path, writing=Writing(max_length=18))


def test_draws_follow_the_distribution_at_every_temperature():
    logits = torch.tensor([1.0, 0.0, -1.0, 2.0])
    temperatures = torch.tensor([0.0, 0.5, 1.0]).repeat(20_000)
    drawn = draw(logits.expand(60_000, 4).contiguous(), temperatures, torch.Generator().manual_seed(0)).view(-1, 3)
    assert (drawn[:, 0] == 3).all()
    for column, temperature in ((1, 0.5), (2, 1.0)):
        probs = dict(enumerate((logits / temperature).softmax(0).tolist()))
        counts = dict(enumerate(drawn[:, column].bincount(minlength=4).tolist()))
        assert g_test(counts, probs, 20_000) > 1e-3


def test_an_interrupted_run_goes_on_and_gives_the_same(tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    start = warm_up(TARGET, TOKENIZER, 500, whole, writing=WRITING)
    shards = sorted(whole.iterdir())
    assert len(shards) >= 3
    parts.mkdir()
    (parts / shards[0].name).write_bytes(shards[0].read_bytes())
    counts = []
    again = warm_up(TARGET, TOKENIZER, 500, parts, writing=WRITING, on_tokens=counts.append)
    assert counts[0] == len(read_texts(shards[0]).tokens)
    assert [path.name for path in sorted(parts.iterdir())] == [path.name for path in shards]
    assert torch.equal(torch.cat(list(again.texts)), torch.cat(list(start.texts)))
    assert torch.equal(again.table.candidates, start.table.candidates)
    assert torch.equal(read_folder(parts).tokens, torch.cat(list(start.texts)))
    first, second = (read_texts(path).tokens.tolist() for path in shards[:2])
    assert first != second, "every batch has a seed of its own"
    with pytest.raises(CheckpointError, match="other settings"):
        warm_up(TARGET, TOKENIZER, 500, parts, writing=Writing(seed=1))


def test_the_table_knows_what_the_model_thinks(tmp_path):
    start = warm_up(TARGET, TOKENIZER, 300, tmp_path, prompts=["Why?", "Who grants what?"], writing=WRITING)
    assert start.about["num_prompts"] == 2
    assert start.vocab_size == len(TOKENIZER)
    assert TOKENIZER.decode(start.texts[1]).startswith("<s>user\nWho grants what?</s>\n<s>assistant\n")
    texts = read_folder(tmp_path)
    seen = texts.tokens[texts.top[:, 0] >= 0].unique()
    assert torch.equal((start.table.candidates[:, 0] >= 0).nonzero().squeeze(1), seen)


def test_damaged_texts_are_refused(tmp_path):
    warm_up(TARGET, TOKENIZER, 50, tmp_path, writing=WRITING)
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    assert set(load_file(path)) == {"tokens", "lengths", "top"}
    path.write_bytes(whole[:-20])
    with pytest.raises(CheckpointError, match="cannot be read"):
        warm_up(TARGET, TOKENIZER, 50, tmp_path, writing=WRITING)
    path.unlink()
    with pytest.raises(CheckpointError, match="write some text first"):
        read_folder(tmp_path)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("lengths", [7, -1]),
        ("lengths", [6, 0]),
        ("lengths", [3, 4]),
        ("lengths", [[6]]),
        ("lengths", 6),
        ("tokens", 6),
        ("tokens", [[1]] * 6),
        ("tokens", [1.5] * 6),
        ("top", [1] * 6),
    ],
)
def test_texts_that_do_not_fit_themselves_are_refused(tmp_path, name, values):
    parts = {"tokens": [1, 2, 3, 4, 5, 6], "lengths": [2, 4], "top": [[1, 2]] * 6} | {name: values}
    path = tmp_path / "text-00000.safetensors"
    write_tensors(path, FORMAT, {part: torch.tensor(given) for part, given in parts.items()}, {})
    with pytest.raises(CheckpointError, match=r"text-00000\.safetensors holds tensors that do not fit"):
        read_folder(tmp_path)


def test_texts_with_different_numbers_of_candidates_are_not_joined(tmp_path):
    tokens, lengths = torch.tensor([1, 2, 3]), torch.tensor([3])
    for number, count in enumerate((4, 2)):
        top = torch.zeros(3, count, dtype=torch.long)
        save_texts(tmp_path / f"text-0000{number}.safetensors", Texts(tokens, lengths, top), "")
    with pytest.raises(CheckpointError, match="2 and 4 probable next tokens"):
        read_folder(tmp_path)


def test_options_out_of_range_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="num_tokens"):
        warm_up(TARGET, TOKENIZER, 0, tmp_path)
    for options in ({"max_length": 0}, {"batch_size": True}):
        with pytest.raises(ConfigError, match=next(iter(options))):
            Writing(**options)
    for options in ({"temperatures": ()}, {"temperatures": (-1.0,)}, {"message_temperature": -0.1}):
        with pytest.raises(ConfigError, match="temperatures"):
            Writing(**options)
    endless = tiny_llama(vocab_size=8)
    nameless = copy.deepcopy(byte_level(400))
    nameless.eos_token = None
    with pytest.raises(ConfigError, match="never end"):
        end_tokens(endless, nameless)
    assert end_tokens(endless, TOKENIZER) == [END]
    endless.generation_config.eos_token_id = [3, 4]
    assert end_tokens(endless, TOKENIZER) == [3, 4]


@pytest.fixture
def saved(tmp_path):
    folder = tmp_path / "model"
    TARGET.save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    return folder


def test_the_command(saved, tmp_path):
    prompts, out = tmp_path / "prompts.txt", tmp_path / "warm.safetensors"
    prompts.write_text("What is this?\n\nAnd that?\n")
    arguments = ["warm-up", str(saved), "--out", str(out), "--tokens", "200", "--prompts", str(prompts)]
    arguments += ["--batch-size", "4", "--max-length", "24", "--seed", "3", "--name", "toy"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    start = WarmStart.load(out)
    assert start.num_tokens >= 200
    assert start.about["model"] == "toy"
    assert start.about["num_prompts"] == 2
    assert start.about["writing"]["seed"] == 3
    assert (tmp_path / "warm-texts" / "text-00000.safetensors").is_file()
    out.unlink()
    assert CliRunner().invoke(app, arguments).exit_code == 0
    again = WarmStart.load(out)
    assert torch.equal(again.table.candidates, start.table.candidates)
    assert again.about == start.about


def test_the_command_that_only_writes(saved, tmp_path):
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "texts"
    prompts.write_text(json.dumps({"prompt": "What?\n\nAnd that?"}) + "\n\n" + json.dumps({"prompt": "Why?"}) + "\n")
    arguments = ["write", str(saved), "--out", str(out), "--prompts", str(prompts), "--tokens", "200"]
    arguments += ["--batch-size", "4", "--max-length", "40"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    texts = read_folder(out)
    assert len(texts.tokens) >= 200
    written = [TOKENIZER.decode(text) for text, _ in split(texts)]
    assert written[0].startswith("<s>user\nWhat?\n\nAnd that?</s>\n<s>assistant\n")
    assert written[1].startswith("<s>user\nWhy?</s>\n<s>assistant\n")
    last = max(out.iterdir())
    last.unlink()
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert last.is_file()
    assert torch.equal(read_folder(out).tokens, texts.tokens), "it goes on where it stopped"
    prompts.write_text(json.dumps({"prompt": "Why?"}))
    refused = CliRunner().invoke(app, arguments)
    assert isinstance(refused.exception, CheckpointError), "answers to other prompts are in that folder"


def test_the_command_takes_openings_and_temperatures(saved, tmp_path):
    openings, out = tmp_path / "openings.txt", tmp_path / "texts"
    openings.write_text("Translate\n")
    arguments = ["write", str(saved), "--out", str(out), "--openings", str(openings), "--tokens", "100", "--seed", "1"]
    arguments += ["--batch-size", "4", "--max-length", "60", "--max-message", "12", "--temperature", "0"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    for text, top in split(read_folder(out)):
        words = TOKENIZER.decode(text)
        assert words.startswith("<s>user\nTranslate")
        if "<s>assistant\n" in words:
            start = next(i for i in range(len(text)) if TOKENIZER.decode(text[:i]).endswith("<s>assistant\n"))
            assert torch.equal(top[start - 1 : -1, 0], text[start:]), "all answers are greedy"
    assert CliRunner().invoke(app, [*arguments[:-1], "-1"]).exit_code != 0


@pytest.mark.parametrize("line", ["Why?", "[1]", '{"text": "Why?"}', '{"prompt": 1}'])
def test_prompts_of_another_form_are_refused(tmp_path, line):
    path = tmp_path / "prompts.jsonl"
    path.write_text(line)
    with pytest.raises(ConfigError, match="expected one"):
        read_prompts(path)


@pytest.mark.parametrize(("content", "words"), [(b"\n \n", "holds no message"), (b"caf\xe9\n", "no UTF-8 text")])
def test_files_without_prompts_are_refused(tmp_path, content, words):
    path = tmp_path / "prompts.txt"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=words):
        read_prompts(path)


def test_the_command_says_what_is_wrong(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["treespec", "warm-up", str(tmp_path), "--out", str(tmp_path / "x.safetensors")])
    with pytest.raises(SystemExit, match="treespec: cannot load"):
        main()
    result = CliRunner().invoke(app, ["warm-up", "--help"])
    assert result.exit_code == 0
