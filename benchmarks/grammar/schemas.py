"""JSON schemas, with requests, and their grammars by xgrammar. The texts that they allow are short."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from transformers import PreTrainedTokenizerBase

from treespec.hf import GrammarProcessor

NEW_TOKENS = 220
"""More than any text of the schemas can have, at one token per character."""


def text(longest: int) -> dict[str, Any]:
    return {"type": "string", "minLength": 1, "maxLength": longest}


def record(**properties: Any) -> dict[str, Any]:
    """An object with all of these properties and no other."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


class Task(NamedTuple):
    """A schema and what is asked for it."""

    schema: dict[str, Any]
    requests: list[str]


TASKS: dict[str, Task] = {
    "person": Task(
        record(
            name=text(20),
            age={"type": "integer", "minimum": 1, "maximum": 99},
            profession=text(20),
            city=text(16),
            is_member={"type": "boolean"},
        ),
        [
            "Describe Ada, a young engineer from London who joined our club, as JSON.",
            "Make a record of an old fisherman in Lisbon. Answer in JSON.",
            "Extract the person: 'Maria Rossi, 42, teaches in Rome and left the association last year.'",
            "Invent a member of a chess club in Berlin and answer in JSON.",
        ],
    ),
    "tool call": Task(
        record(
            tool={"enum": ["get_weather", "send_email", "search_flights", "set_alarm"]},
            arguments=record(
                destination=text(16),
                departure_time={"type": "string", "pattern": "^[0-2][0-9]:[0-5][0-9]$"},
                number_of_passengers={"type": "integer", "minimum": 1, "maximum": 9},
                travel_class={"enum": ["economy", "business", "first"]},
            ),
        ),
        [
            "Call a tool: I want to fly to Madrid at nine in the morning with my wife.",
            "Call a tool: three people need cheap seats to Oslo tonight.",
            "Call a tool: book the best seat to Tokyo for me, leaving at noon.",
            "Call a tool: how do I get to Vienna before ten?",
        ],
    ),
    "order": Task(
        record(
            order_status={"enum": ["received", "in_preparation", "shipped", "delivered"]},
            order_items={
                "type": "array",
                "minItems": 2,
                "maxItems": 2,
                "items": record(
                    product=text(12),
                    quantity={"type": "integer", "minimum": 1, "maximum": 9},
                    size={"enum": ["small", "medium", "large", "extra_large"]},
                    colour={"enum": ["red", "green", "blue", "black", "white"]},
                ),
            },
        ),
        [
            "A customer bought two red shirts and a large black coat. It left the house today. Answer in JSON.",
            "Write an order of a green hat and five white socks as JSON.",
            "Order: one small blue dress, three medium red scarves. Not packed yet. Answer in JSON.",
            "Give me an example of an order in a clothes shop, in JSON.",
        ],
    ),
}


def compiler(tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> Any:
    """An xgrammar compiler for the tokenizer."""
    import xgrammar

    ends: list[Any] = [tokenizer.eos_token_id]
    info = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=vocab_size, stop_token_ids=ends)
    return xgrammar.GrammarCompiler(info)


def processor(grammars: Any, schema: dict[str, Any]) -> GrammarProcessor:
    """Under the schema, on one line as `json.dumps` writes it."""
    return GrammarProcessor(grammars.compile_json_schema(json.dumps(schema), any_whitespace=False))
