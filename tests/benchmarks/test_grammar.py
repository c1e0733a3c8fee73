"""The benchmark of grammars: what counts as valid, and its comparison of two samples."""

from collections import Counter

import jsonschema
import pytest

from benchmarks.grammar.__main__ import is_valid
from benchmarks.grammar.distribution import two_sample_p
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


def test_two_samples():
    same = Counter(a=480, b=300, c=15, d=3), Counter(a=510, b=280, c=12, e=2)
    assert two_sample_p(*same) > 0.1
    assert two_sample_p(same[0], Counter(a=400, b=380, c=15)) < 1e-3
