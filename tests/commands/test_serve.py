"""`treespec serve`: OpenAI's client gets plain `generate`'s texts, with statistics of every request."""

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from helpers.tiny import tiny_llama
from helpers.written import chat_tokenizer
from helpers.wrong_heads import EAGLE, write

openai = pytest.importorskip("openai")
pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

from treespec.commands import serve  # noqa: E402
from treespec.engine.stats import SpeculationStats  # noqa: E402
from treespec.errors import ConfigError  # noqa: E402
from treespec.speedup import plain  # noqa: E402

MESSAGES = [{"role": "user", "content": "ab ab ab"}]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A server of a tiny model with a head next to it: a client, the model's name and what `plain` gives."""
    folder = tmp_path_factory.mktemp("served")
    tokenizer = chat_tokenizer()
    model = tiny_llama(vocab_size=len(tokenizer), num_layers=8)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    write(folder / "head", EAGLE | {"vocab": len(tokenizer)})
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    server, report = serve.make_server(str(folder), host="localhost", port=port, device="cpu", dtype="float32")
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    client = openai.OpenAI(base_url=f"http://localhost:{port}/v1", api_key="none", max_retries=0)

    def plain(count):
        chat = tokenizer.apply_chat_template(
            MESSAGES, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        out = model.generate(**chat, max_new_tokens=count, do_sample=False)
        return tokenizer.decode(out[0, chat["input_ids"].shape[1] :], skip_special_tokens=True)

    yield client, str(folder), plain, report
    server.should_exit = True
    thread.join(30)


def ask(served, stream=False, **options):
    client, name, *_ = served
    options = {"temperature": 0.0, "max_tokens": 24} | options
    return client.chat.completions.create(model=name, messages=MESSAGES, stream=stream, **options)


def test_answers_are_plain_and_carry_their_statistics(served):
    answer = ask(served)
    assert answer.choices[0].message.content == served[2](24)
    assert answer.choices[0].finish_reason == "length"
    found = answer.metrics["speculative_decoding"]
    assert found["num_spec_steps"] == sum(found["acceptance_histogram"])
    assert found["num_accepted_draft_tokens"] <= found["num_draft_tokens"]
    assert found["mean_acceptance_length"] >= 1


def test_streams_are_plain_and_end_with_statistics(served):
    chunks = list(ask(served, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == served[2](24)
    assert chunks[-1].choices[0].finish_reason == "length"
    assert chunks[-1].usage.completion_tokens == 24
    assert chunks[-1].metrics["speculative_decoding"]["num_spec_steps"] > 0


def test_texts_without_a_template(served):
    client, name, *_ = served
    answer = client.completions.create(model=name, prompt="ab ab", max_tokens=8, temperature=0.0)
    assert answer.metrics["speculative_decoding"]["num_spec_steps"] > 0
    parts = list(client.completions.create(model=name, prompt="ab ab", max_tokens=8, temperature=0.0, stream=True))
    assert "".join(part.choices[0].text for part in parts) == answer.choices[0].text


def test_responses_are_plain_and_carry_their_statistics(served):
    client, name, plain, _ = served
    options = {"model": name, "input": MESSAGES, "max_output_tokens": 24, "temperature": 0.0}
    answer = client.responses.create(**options, stream=False)
    assert answer.output_text == plain(24)
    found = answer.metrics["speculative_decoding"]
    assert found["num_spec_steps"] == sum(found["acceptance_histogram"]) > 0
    events = list(client.responses.create(**options, stream=True))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == plain(24)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    last = events[-1].response
    assert last.output_text == plain(24)
    assert last.usage.output_tokens == 24
    assert last.metrics["speculative_decoding"]["num_spec_steps"] > 0
    stream = client.responses.create(**options | {"max_output_tokens": 2000}, stream=True)
    next(iter(stream))
    stream.close()
    assert client.responses.create(**options, stream=False).output_text == plain(24)


def test_what_speculation_leaves_to_plain_decoding(served, monkeypatch):
    # Whatever the calls before have taught the object.
    monkeypatch.setattr(plain.FasterWay, "is_plain", property(lambda way: True, lambda way, found: None))
    answer, chunks = ask(served), list(ask(served, stream=True))
    texts = [answer.choices[0].message.content, "".join(chunk.choices[0].delta.content or "" for chunk in chunks)]
    assert texts == [served[2](24)] * 2
    for body in (answer, chunks[-1]):
        found = body.metrics["speculative_decoding"]
        assert (found["num_spec_steps"], found["num_draft_tokens"]) == (23, 0)


def test_requests_at_once_and_of_other_settings(served):
    with ThreadPoolExecutor(4) as pool:
        counts = [8, 12, 16, 20]
        answers = list(pool.map(lambda count: ask(served, max_tokens=count), counts))
    assert [answer.choices[0].message.content for answer in answers] == [served[2](count) for count in counts]
    stop = served[2](24)[6:8]
    assert ask(served, stop=[stop]).choices[0].message.content == served[2](24).partition(stop)[0] + stop
    sampled = ask(served, temperature=1.0, seed=5)
    assert sampled.usage.completion_tokens == 24
    assert sampled.metrics["speculative_decoding"]["num_spec_steps"] > 0


def test_a_request_that_is_given_up_ends(served):
    stream = ask(served, stream=True, max_tokens=2000)
    next(iter(stream))
    stream.close()
    start = time.monotonic()
    assert ask(served, max_tokens=4).choices[0].message.content == served[2](4)
    assert time.monotonic() - start < 60


def test_statistics_that_nobody_takes_do_not_pile_up(monkeypatch):
    from treespec.commands import serving

    class Speculation:
        stats = SpeculationStats()

    speculating = serving.Speculating(tiny_llama(), Speculation())
    speculating._finish("failed", Speculation.stats)
    assert not speculating.metrics
    for number in range(2 * serving.MOST_KEPT):
        speculating._finish(str(number), SpeculationStats())
    assert list(speculating.metrics) == [str(number) for number in range(serving.MOST_KEPT, 2 * serving.MOST_KEPT)]


def test_what_is_served_and_what_not(served):
    client, *_, report = served
    assert "drafts    the head in" in report, report
    with pytest.raises(openai.BadRequestError, match="400"):
        client.chat.completions.create(model="another", messages=MESSAGES)


def test_missing_packages_are_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "uvicorn", None)
    with pytest.raises(ConfigError, match=r"treespec\[serve\]"):
        serve.make_server("x", host="localhost", port=1, device="cpu", dtype="auto")
