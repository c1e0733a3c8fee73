"""Names that are not on the hub are refused after one question, not after its client's retries."""

from types import SimpleNamespace

import pytest
from helpers.tiny import tiny_llama
from huggingface_hub.errors import (
    HfHubHTTPError,
    HTTPError,  # pyright: ignore[reportPrivateImportUsage]
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
)

from treespec.errors import CheckpointError
from treespec.hf.loading import hub
from treespec.hf.loading.heads import load_head
from treespec.hf.loading.hub import hub_problem
from treespec.hf.loading.models import load_model, load_tokenizer

RESPONSE = SimpleNamespace(headers={}, request=None, status_code=404)


@pytest.fixture
def asked(monkeypatch, tmp_path):
    """The questions to the hub; `asked.error` is its answer."""
    found = SimpleNamespace(names=[], error=None)

    def answer(url, timeout):
        found.names.append(url)
        if found.error is not None:
            raise found.error

    monkeypatch.setattr(hub, "get_hf_file_metadata", answer)
    monkeypatch.setattr(hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return found


@pytest.mark.parametrize("error", [HTTPError("Name or service not known"), ConnectionError("offline mode")])
def test_no_network_is_one_question(asked, error):
    asked.error = error
    for load in (load_model, load_tokenizer, lambda name: load_head(name, tiny_llama())):
        with pytest.raises(CheckpointError, match=r"cannot load .* 'no/model'.*cannot be reached"):
            load("no/model")
    assert len(asked.names) == 3


def test_what_the_hub_answers(asked):
    asked.error = RepositoryNotFoundError("404", response=RESPONSE)
    assert "no such public repository" in str(hub_problem("no/model"))
    for error in (RemoteEntryNotFoundError("404", response=RESPONSE), HfHubHTTPError("503", response=RESPONSE), None):
        asked.error = error
        assert hub_problem("a/model") is None, "its client says what is missing, or tries again"


def test_folders_and_what_is_cached_need_no_question(asked, tmp_path):
    asked.error = HTTPError("no network")
    (tmp_path / "hub" / "models--a--model" / "snapshots" / "1").mkdir(parents=True)
    assert hub_problem("a/model") is None
    assert hub_problem(str(tmp_path)) is None
    assert asked.names == []
    assert hub_problem("no/such/folder/here") is None, "no name of a repository: the loader says so"
