"""The benchmark of grammars: what counts as valid."""

import jsonschema
import pytest

from benchmarks.grammar.__main__ import is_valid
from benchmarks.grammar.schemas import TASKS


@pytest.mark.parametrize("name", TASKS)
def test_schemas_are_schemas(name):
    jsonschema.Draft202012Validator.check_schema(TASKS[name].schema)
    assert len(TASKS[name].requests) == 4


def test_what_is_valid():
    person = '{"name": "Ada", "age": 36, "profession": "poet", "city": "London", "is_member": true}'
    schema = TASKS["person"].schema
    assert is_valid(person, schema)
    assert not is_valid(person[:-1], schema)
    assert not is_valid(person.replace("36", "100"), schema)
