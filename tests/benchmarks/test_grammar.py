"""The benchmark of grammars: what counts as valid."""

import jsonschema

from benchmarks.grammar.__main__ import is_valid
from benchmarks.grammar.schemas import TASKS


def test_what_is_valid():
    for task in TASKS.values():
        jsonschema.Draft202012Validator.check_schema(task.schema)
        assert len(task.requests) == 4
    person = '{"name": "Ada", "age": 36, "profession": "poet", "city": "London", "is_member": true}'
    schema = TASKS["person"].schema
    assert is_valid(person, schema)
    assert not is_valid(person[:-1], schema)
    assert not is_valid(person.replace("36", "100"), schema)
