"""Links of the pages become links of the site."""

from docs.tools.repository import ROOT, linked, page_of, site_path, with_site_links


def test_links_between_pages_of_all_kinds():
    peers = "benchmarks/results/peers/peers.png"
    text = f"[a](../README.md#limits) [b](policies.md) ![c](../{peers}) [d](https://example.org) [e](../CHANGELOG.md)"
    expected = f"[a](index.md#limits) [b](policies.md) ![c](repository/{peers}) [d](https://example.org) "
    expected += "[e](repository/CHANGELOG.md)"
    assert with_site_links(text, "docs/how.md") == expected
    assert linked(text, "docs/how.md") == ["README.md", "docs/policies.md", peers, "CHANGELOG.md"]
    assert with_site_links("[a](docs/how.md)", "README.md") == "[a](how.md)"
    assert with_site_links("[a](peers.png)", "benchmarks/results/peers/peers.md") == "[a](peers.png)"
    code = "[a](nothing.md)\n```python\nrows[0](../README.md)\n```\n"
    assert with_site_links(code, "docs/how.md") == code, "code and missing files stay"
    assert site_path("treespec/policies") == "repository/treespec/policies.md"
    assert (ROOT / "treespec/errors.py").read_text() in page_of("treespec/errors.py")
    assert "- `paths.py`: " in page_of("treespec/policies")
