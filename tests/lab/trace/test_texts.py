"""Texts of tokens."""

from helpers.traced import record
from helpers.written import TARGET, TOKENIZER, spell

from treespec.lab.trace.texts import Texts


def test_pieces_make_up_the_text():
    text = "Ein Käse 🧀 für dich"
    texts = Texts(TOKENIZER)
    ids = spell(text)
    pieces = texts.pieces(0, ids[:5]) + texts.pieces(0, ids[5:])
    assert "".join(pieces) == TOKENIZER.decode(ids)
    assert len(pieces) == len(ids)


def test_a_trace_has_the_texts_of_its_tokens_once(tmp_path):
    out, _, trace = record(tmp_path / "run.jsonl", "lookup", model=TARGET, tokenizer=TOKENIZER)
    (call,) = trace.calls
    assert "".join(piece for step in call.steps for piece in step.pieces).strip("\ufffd") in TOKENIZER.decode(
        out[0, 12:]
    )
    assert {token for step in call.steps for token in [*step.tokens, step.next_token]} == set(call.texts)
    assert call.about["prompt"] == [TOKENIZER.decode(out[0, :12])]
