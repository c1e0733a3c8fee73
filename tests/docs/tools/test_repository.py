"""Links of the pages become links of the site."""

import json
import re

from docs.tools.repository import ROOT, linked, notebook_page, page_of, site_path, with_site_links


def test_links_between_pages_of_all_kinds():
    peers = "benchmarks/results/peers/peers.png"
    text = f"[a](../README.md#limits) [b](policies.md) ![c](../{peers}) [d](https://example.org) [e](../CHANGELOG.md)"
    expected = f"[a](index.md#limits) [b](policies.md) ![c](repository/{peers}) [d](https://example.org) "
    expected += "[e](repository/CHANGELOG.md)"
    assert with_site_links(text, "docs/how.md") == expected
    assert linked(text, "docs/how.md") == ["README.md", "docs/policies.md", peers, "CHANGELOG.md"]
    assert with_site_links("[a](docs/how.md)", "README.md") == "[a](how.md)"
    assert with_site_links("[a](peers.png)", "benchmarks/results/peers/peers.md") == "[a](peers.png)"


def test_code_and_missing_files_stay():
    text = "[a](nothing.md)\n```python\nrows[0](../README.md)\n```\n"
    assert with_site_links(text, "docs/how.md") == text


def test_source_files_and_folders_have_pages():
    assert site_path("treespec/protocols.py") == "repository/treespec/protocols.py.md"
    assert site_path("treespec/policies") == "repository/treespec/policies.md"
    assert (ROOT / "treespec/errors.py").read_text() in page_of("treespec/errors.py")
    assert "- `paths.py`: " in page_of("treespec/policies")


def test_the_notebook_is_a_page_with_its_outputs():
    notebook = json.loads((ROOT / "examples" / "tour.ipynb").read_text())
    page = notebook_page(notebook)
    codes = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert len(re.findall("~~~~~python", page)) == len(codes) > 5
    assert "~~~~~text" in page
    assert "data:image/png;base64," in page
