"""`treespec tune`, and the commands that read its file."""

import json
from io import StringIO
from types import SimpleNamespace

from helpers.cli import invoke, succeed
from rich.console import Console

from treespec.commands.tune import _show
from treespec.lab.setting import Setting

SMALL = ("--new-tokens", "6", "--rounds", "1", "--max-nodes", "4")


def test_a_setting_is_written_and_read_by_the_other_commands(saved, prompts, tmp_path):
    out = tmp_path / "setting.json"
    done = succeed("tune", saved, "--prompts", prompts, *SMALL, "--out", out, "--json")
    written = json.loads(out.read_text())
    assert json.loads(done.stdout) == written
    assert written["model"] == str(saved)
    assert written["measured"]["passes"]["ms"]
    assert written["measured"]["command"].startswith("treespec")
    trees = [entry["name"] for entry in written["measured"]["candidates"]]
    assert {"recycling", "suffix"} & set(" ".join(trees).replace(":", "").split())
    Setting(("suffix",), "tree of 4").save(out)
    given = ("--prompt", "What is this?", "--max-new-tokens", "8", "--json")
    texts = [json.loads(invoke("generate", saved, *given, *more).stdout) for more in (["--setting", out], [])]
    assert texts[0]["text"] == texts[1]["text"]
    assert set(texts[0]["tokens_by_drafter"]) <= {"SuffixLookup", "target"}
    done = succeed("bench", saved, "--prompts", prompts, *SMALL[:4], "--setting", out, "--no-auto", "--json")
    assert list(json.loads(done.stdout)["runs"])[-1] == "setting setting.json"
    succeed("chat", saved, "--max-new-tokens", "4", "--setting", out, input="Hi\n")


def test_numbers_are_whole_on_a_narrow_terminal():
    speed = SimpleNamespace(value=2.1, text=lambda: "2.10 (1.50 to 2.94)")
    way = SimpleNamespace(name="head + warm: tree of 4, depth 3")
    numbers = {"ms_per_token": 168.05, "tokens_per_pass": 2.22, "step_ms": 133.29}
    found = SimpleNamespace(
        candidates=[SimpleNamespace(way=way, speed=speed, **numbers)], best=None, setting=Setting(("suffix",))
    )
    console = Console(file=StringIO(), width=80)
    _show(found, console)
    for text in (speed.text(), "168.05", "133.29", "tokens/pass", "ms/token", "recommended: plain decoding"):
        assert text in console.file.getvalue()
