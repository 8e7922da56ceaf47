"""The HTML page: one file, safe, small, and usable in a real browser."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from report_results import DIFFERENT, HOSTILE, RESULTS, hostile, large, run

from difftest.errors import DifftestError
from difftest.reports.html import LIMIT, render
from difftest.reports.sentence import sentence
from difftest.result import Change, ChangedLine, Group, RunResult, TargetResult, Way

VOID = {"meta", "link", "input", "br"}


class Page(HTMLParser):
    """Elements with their attributes and text; asserts that every element is closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("script", "style"):
            self.text.append(data)

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.mark.parametrize("result", [*RESULTS.values(), hostile(), large()], ids=[*RESULTS, "hostile", "large"])
def test_it_is_one_well_formed_page_that_asks_for_nothing(result: RunResult) -> None:
    page = Page(render(result))
    assert len(page.of("script")) == len(page.of("style")) == 1
    assert not {"iframe", "img", "object", "embed", "base", "a"} & {tag for tag, _ in page.elements}
    for tag, attributes in page.elements:
        assert not {"src", "srcset", "action", "background"} & set(attributes)
        assert not [name for name in attributes if name.startswith("on")]
        assert attributes.get("href", "data:,") == "data:,", tag
    assert any("default-src 'none'" in str(meta.get("content")) for meta in page.of("meta"))
    assert sentence(result)[:1000] in "".join(page.text)


def test_values_are_escaped() -> None:
    page = Page(render(hostile()))
    text = "".join(page.text)
    assert "\\x1b[31m[bold]a|b`c</details><script>alert(1)</script>\\n@user" in text
    assert "{{ 7*7 }}" in text
    assert not [c for c in text if c != "\n" and not c.isprintable()]
    quoted = replace(DIFFERENT, name="x\" onclick='y' z=", kinds={"value": 1})
    Page(render(run(quoted)))
    assert HOSTILE not in render(hostile())


def test_everything_of_a_difference_is_there() -> None:
    text = " ".join("".join(Page(render(RESULTS["different"])).text).split())
    for wanted in (
        "1a2b3c4d5e6f708192a3b4c5d6e7f8091a2b3c4d",
        "dirtyyes",
        "return[1, 3], request 1",
        "-1.4999999",
        "3 of 64 elements differ (4.69 %), inside the contract",
        "base bytes 00 00 c0 bf, head bytes ff ff bf bf",
        "9 cases inside the contract, 3 outside",
        "and 28 more mismatches",
        "base against base: 2 of 3260 differ",
        "says nothing about races or GPU numerics",
        "difftest run --base main --head WORKTREE",
    ):
        assert wanted in text, wanted


def test_the_picture_of_a_target_has_its_counts() -> None:
    page = Page(render(RESULTS["different"]))
    bar = next(a for a in page.of("span") if a.get("class") == "bar")
    assert bar["role"] == "img" and bar["aria-label"] == "400 cases: 12 different, 386 identical, 2 not measured"
    parts = [(a["class"], a["style"]) for a in page.of("i")][:3]
    assert parts == [("different", "flex:12 0 0"), ("unmeasured", "flex:2 0 0"), ("identical", "flex:386 0 0")]


@pytest.mark.parametrize(
    ("targets", "length"), [(60, 40), (60, 50_000), (2_500, 40)], ids=["usual", "long values", "many targets"]
)
def test_it_stays_under_a_megabyte_and_counts_what_it_leaves_out(targets: int, length: int) -> None:
    text = render(large(targets=targets, cases=20_000 if targets == 60 else 200_000, text=length))
    assert len(text.encode()) < LIMIT
    blocks = text.count('<details class="target"')
    if blocks < targets:
        assert f"and {targets - blocks} more targets" in text
    shown = text.count('<section class="mismatch"')
    assert shown + sum(map(int, re.findall(r"and (\d+) more mismatches", text))) == 500 * blocks


def test_without_jinja2_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("difftest.reports.html.find_spec", lambda name: None)
    with pytest.raises(DifftestError, match=r"jinja2.*difftest-sampler\[html\]"):
        render(RESULTS["different"])


def test_reports_load_without_jinja2_and_torch() -> None:
    code = (
        "import sys, importlib\n"
        "for name in 'json markdown html junit github terminal'.split():\n"
        "    importlib.import_module(f'difftest.reports.{name}')\n"
        "print(sorted({'jinja2', 'torch'} & set(sys.modules)))"
    )
    run_ = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run_.stdout.strip() == "[]"


def explained(target: TargetResult) -> TargetResult:
    """The target with a group of cases, outcomes by axis, and changed source."""
    return replace(
        target,
        axes={"layout": {"contiguous": {"identical": 90}, "padded rows": {"different": 3, "identical": 7}}},
        groups=(
            Group(
                kinds=("value",),
                leaves=("return[*]",),
                likeness="ulp",
                cases=3,
                mismatches=9,
                example="5d41402abc4b2a76",
                label="batch 4 <padded>",
                outside_contract=1,
                rules=("all 3 differing cases have layout: padded rows",),
                lines=("sampler.py:12",),
                ways=(Way("value", "return[*]", "ulp", "", 3, 9),),
                first=target.mismatches[0],
            ),
        ),
        changes=(
            Change(
                symbol="sampler:penalise",
                status="changed",
                base_path="sampler.py",
                head_path="sampler.py",
                lines=(
                    ChangedLine(" ", 11, 11, "def penalise(logits):"),
                    ChangedLine("-", 12, None, "    return logits / 2", "both"),
                    ChangedLine("+", None, 12, "    return logits * 0.5 if logits < 1 else logits", "differing"),
                ),
                cut=4,
            ),
        ),
        traced={"differing": 3, "identical": 6},
        fixed_noise={"said": "with the same noise both arms emit the same tokens"},
    )


def test_causes_axes_and_changed_source_are_there() -> None:
    first, *others = RESULTS["different"].targets
    page = Page(render(replace(RESULTS["different"], targets=(explained(first), *others))))
    text = " ".join("".join(page.text).split())
    for wanted in (
        "Likely cause. In 3 of the 12 differing cases: return[*]: values differ by a few units in the last place.",
        "1. 3 cases: return[*]: values differ by a few units in the last place; 1 of the 3 cases is outside",
        "for examplereturn[1, 3], request 1: 3 of 64 elements differ (4.69 %), inside the contract",
        "its case5d41402abc4b2a76: batch 4, vocabulary 16, repetition 1.1",
        "all 3 differing cases have layout: padded rows",
        "padded rows 3 of 10 different",
        "◆ run by differing cases only",
        "12 ◆ + return logits * 0.5 if logits < 1 else logits",
        "and 4 more lines",
        "with the same noise both arms emit the same tokens",
    ):
        assert wanted in text, wanted
    cells = [a for a in page.of("span") if "cell" in (a.get("class") or "")]
    assert [(a["class"], a.get("style")) for a in cells] == [
        ("cell all-identical", None),
        ("cell has-different", "--share:30%"),
    ]


@pytest.mark.parametrize(("axes", "lines"), [(12, 300), (40, 20_000)])
def test_pictures_and_source_give_way_when_the_page_grows(axes: int, lines: int) -> None:
    result = large()
    values = {f"value {n}": {"identical": 20, "different": n % 3} for n in range(30)}
    first = explained(result.targets[0])
    line = first.changes[0].lines[2]
    heavy = replace(
        first,
        axes={f"axis {n}": values for n in range(axes)},
        changes=(replace(first.changes[0], lines=(line,) * lines),),
    )
    text = render(replace(result, targets=tuple(replace(heavy, name=t.name) for t in result.targets)))
    assert len(text.encode()) < LIMIT
    assert text.count('<details class="target"') == len(result.targets)


WATCH = """<script>
window.faults = [];
addEventListener("error", e => faults.push(e.message));
addEventListener("securitypolicyviolation", e => faults.push(e.violatedDirective + " " + e.blockedURI));
</script>"""

DRIVE = """<script>
addEventListener("load", () => {
  const shown = () => [...document.querySelectorAll(".target")].filter(t => t.offsetParent !== null).map(
    t => t.querySelector(".name").textContent).join(" ");
  const form = document.getElementById("filters");
  const say = (name, value) => { const p = document.createElement("p"); p.id = "said-" + name;
    p.textContent = value; document.body.append(p); };
  const fire = () => form.dispatchEvent(new Event("input", { bubbles: true }));
  say("all", shown());
  form.querySelector("[value=identical]").checked = false; fire();
  say("verdict", shown() + " | " + form.querySelector("output").value);
  form.querySelector("[value=identical]").checked = true;
  form.elements.text.value = "REJECTION"; fire();
  say("text", shown());
  form.elements.text.value = ""; form.elements.kind.value = "rng"; fire();
  say("kind", shown() + " | " + [...document.querySelectorAll(".mismatch")].filter(
    m => m.checkVisibility()).map(m => m.dataset.kind).join(" "));
  form.elements.kind.value = ""; fire();
  const first = document.querySelector(".target > summary"); first.focus();
  say("focus", document.activeElement === first && form.elements.text.tabIndex === 0);
  say("width", document.documentElement.scrollWidth <= innerWidth);
  say("requests", performance.getEntriesByType("resource").length);
  say("faults", faults.join("; "));
});
</script>"""


def said_in_a_browser(text: str, tmp_path: Path, width: int, dark: int) -> dict[str, str]:
    """What :data:`DRIVE` found on a page; the console must have stayed empty."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        pytest.skip("no chromium on this machine")
    page = tmp_path / "page.html"
    page.write_text(text.replace("<title>", f"{WATCH}<title>").replace("</body>", f"{DRIVE}</body>"), encoding="utf-8")
    options = ["--headless", "--disable-gpu", f"--window-size={width},1600", f"--user-data-dir={tmp_path / 'profile'}"]
    options += [f"--blink-settings=preferredColorScheme={0 if dark else 1}", "--enable-logging=stderr"]
    options += ["--no-sandbox"] if os.geteuid() == 0 else []
    done = subprocess.run(
        [browser, *options, "--dump-dom", page.as_uri()], capture_output=True, text=True, timeout=60, check=True
    )
    assert "CONSOLE" not in done.stderr
    return dict(re.findall(r'<p id="said-(\w+)">([^<]*)</p>', done.stdout))


@pytest.mark.parametrize("width", [390, 1400])
@pytest.mark.parametrize("dark", [0, 1], ids=["light", "dark"])
def test_in_a_browser_filters_work_and_nothing_is_wrong(tmp_path: Path, width: int, dark: int) -> None:
    first, *others = RESULTS["different"].targets
    result = replace(RESULTS["different"], targets=(explained(first), *others))
    assert said_in_a_browser(render(result), tmp_path, width, dark) == {
        "all": "v1.penalties v1.sampler v1.parse_output v1.top_k_top_p v1.rejection_greedy",
        "verdict": "v1.penalties v1.sampler | 2 of 5 targets shown",
        "text": "v1.parse_output v1.rejection_greedy",
        "kind": "v1.penalties | rng",
        "focus": "true",
        "width": "true",
        "requests": "0",
        "faults": "",
    }


def test_in_a_browser_a_run_of_20_000_cases_is_shown(tmp_path: Path) -> None:
    result = large()
    text = render(replace(result, targets=tuple(replace(explained(t), name=t.name) for t in result.targets)))
    assert sum(t.cases.executed for t in result.targets) > 19_000 and len(text.encode()) < LIMIT
    # Its targets have all the same verdict, so the filters have less to show; DRIVE needs an identical one.
    said = said_in_a_browser(text.replace('value="different" checked', 'value="identical" checked'), tmp_path, 390, 0)
    assert (said["width"], said["requests"], said["faults"]) == ("true", "0", "")
