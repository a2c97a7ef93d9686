"""Comparisons as text.

- CSV, JSON, Markdown and LaTeX parse back to the numbers and to the names, whatever characters these hold.
- On a terminal every number and name is there at any width, and no name is obeyed as markup or control code.
- The two rows tested and significant differences are marked as in papers; the best is bold.
"""

from __future__ import annotations

import csv
import html
import json
import re
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from mixfluence.report.compare import Comparison, compare
from mixfluence.report.page import TEMPLATES
from mixfluence.report.summary import make_notes, make_sheets, to_csv, to_json, to_latex, to_markdown, to_terminal
from mixfluence.report.tables import add_to_card
from tests.report.test_compare import made_run, shifted, untrained

NAMES = ["<script>alert(1)</script>", r"a_b & 50% $x$ #1 {~^\}", "[red]x[/red]", "p|q*r`s", "average", 'say "x", y']
CONTROL = "esc\x1b[31m\nline"
HIGH, LOW = [0.71, 0.62, 0.83, 0.74], [0.4, 0.35, 0.5, 0.45]


def hostile(names: Sequence[str] = NAMES, runs: Sequence[str] = ("[bold]up_1", "down&2", "|")) -> Comparison:
    """Three rows; the first is better than the second on every query but those of the last set."""
    one = {name: HIGH for name in names} | {names[-1]: LOW}
    other = {name: LOW for name in names}
    return compare(
        [
            made_run(runs[0], one, strategy="inf-dds"),
            made_run(runs[1], other, strategy="cooldown", seconds={"train": 3600.0}),
            made_run(runs[2], {name: [0.1] * 4 for name in names}),
        ]
    )


def shown(comparison: Comparison, width: int) -> str:
    text = StringIO()
    Console(file=text, width=width, color_system=None).print(to_terminal(comparison))
    return text.getvalue()


def test_csv_parses_back() -> None:
    found = hostile()
    lines = list(csv.DictReader(StringIO(to_csv(found))))
    header = next(csv.reader(StringIO(to_csv(found))))
    assert len(set(header)) == len(header)
    assert [line["name"] for line in lines] == [group.label for group in found.groups]
    for line, group in zip(lines, found.groups, strict=True):
        average = found.average(group)
        assert average is not None
        assert float(line["average.mean"]) == average.mean
        assert line["average.sd"] == ""
        assert float(line["cost.total"]) == found.cost(group)
        assert line["unit_of_cost"] == json.loads(to_json(found))["unit_of_cost"]
        assert json.loads(line["runs"]) == [str(run.path) for run in group.runs]
        assert json.loads(line["average.by_seed"]) == [average.mean]
        for name in NAMES:
            assert float(line[f"tests.{name}.mean"]) == group.scores()[name].mean


def test_json_parses_back() -> None:
    found = hostile()
    facts: dict[str, Any] = json.loads(to_json(found), parse_constant=pytest.fail)
    assert [row["name"] for row in facts["rows"]] == [group.label for group in found.groups]
    assert list(facts["rows"][0]["tests"]) == NAMES
    average = found.average(found.groups[0])
    assert average is not None
    assert facts["rows"][0]["average"] == {"mean": average.mean, "sd": None, "by_seed": [average.mean]}
    assert facts["rows"][1]["cost"]["relative_to_static"] == pytest.approx(2)
    assert (facts["contrast"]["first"], facts["contrast"]["second"]) == ("[bold]up_1", "down&2")
    assert facts["contrast"]["tests"]["average"]["p_holm"] < 0.05
    assert facts["contrast"]["tests"][NAMES[-1]]["p"] == 1
    assert json.loads(to_json(compare([made_run("alone")])))["contrast"] is None


def markdown_tables(text: str) -> list[list[list[str]]]:
    """The tables of a Markdown text, escapes undone, as a reader of GitHub would see them."""
    tables: list[list[list[str]]] = [[]]
    for line in text.splitlines():
        if not line.startswith("|"):
            tables.append([])
            continue
        cells = re.findall(r"((?:\\.|[^|\\])*)\|", line[1:])
        tables[-1].append([html.unescape(re.sub(r"\\(.)", r"\1", cell)).strip() for cell in cells])
    return [table for table in tables if table]


def test_markdown_parses_back() -> None:
    text = to_markdown(hostile())
    scores, tests, costs = markdown_tables(text)
    for table in (scores, tests, costs):
        assert len({len(line) for line in table}) == 1
        assert set("".join(table[1])) <= set(":-")
    assert scores[0] == ["#", "run", "sampler", "init", "average", *NAMES]
    assert [line[0] for line in tests[2:]] == ["average", *NAMES]
    assert "<script" not in text
    assert re.search(r"(?<!\\)\[red", text) is None


def test_latex_is_balanced_and_specials_are_escaped() -> None:
    text = to_latex(hostile())
    body = "\n".join(line for line in text.splitlines() if not line.startswith("%"))
    bare = re.sub(r"\\\\|\\[&%$#_{}]", "", body)
    depth = 0
    for character in bare:
        depth += {"{": 1, "}": -1}.get(character, 0)
        assert depth >= 0
    assert depth == 0
    assert not set("%#_$~") & set(bare)
    for table in re.findall(r"\\begin\{tabular\}\{([lr]+)\}(.*?)\\end\{tabular\}", body, flags=re.DOTALL):
        lines = [line for line in table[1].splitlines() if line.endswith(r"\\")]
        assert {len(re.findall(r"(?<!\\)&", line)) + 1 for line in lines} == {len(table[0])}
    assert body.count("\\toprule") == body.count("\\midrule") == body.count("\\bottomrule") == 3
    assert r"a\_b \& 50\% \$x\$ \#1" in body
    assert "72.5*" in body


def test_rows_are_marked_as_in_papers() -> None:
    scores, tests, _ = make_sheets(hostile())
    assert [cell.mark for cell in scores.columns[2].cells] == ["†", "‡", ""]
    columns = {column.head: column for column in scores.columns[4:]}
    assert [(cell.text, cell.bold, cell.mark) for cell in columns["p|q*r`s"].cells] == [
        ("72.5", True, "*"),
        ("42.5", False, ""),
        ("10.0", False, ""),
    ]
    # The set on which they are equal: both are best, none is marked.
    assert [(cell.bold, cell.mark) for cell in columns[NAMES[-1]].cells] == [(True, ""), (True, ""), (False, "")]
    p_values = {line[0].text: line[-1].text for line in zip(*(c.cells for c in tests.columns), strict=True)}
    assert p_values[NAMES[-1]] == "1.000"


def test_the_better_row_is_marked_whichever_is_named_first() -> None:
    runs = [made_run("up", {"a": HIGH}, strategy="inf-dds"), made_run("down", {"a": LOW})]
    found = compare(runs, between=("down", "up"), bootstrap=True)
    scores, tests, _ = make_sheets(found)
    # One test set needs no average.
    assert [column.head for column in scores.columns] == ["#", "run", "sampler", "init", "a"]
    assert [cell.mark for cell in scores.columns[-1].cells] == ["*", ""]
    assert [cell.mark for cell in scores.columns[2].cells] == ["‡", "†"]
    assert tests.columns[2].cells[0].text == "−30.0"
    assert re.fullmatch(r"−\d\d\.\d to −\d\d\.\d", tests.columns[3].cells[0].text)


def test_equal_rows_have_no_mark_and_no_best() -> None:
    for sheet in make_sheets(compare([made_run("one"), made_run("copy")]))[:1]:
        assert not any(cell.bold or cell.mark == "*" for column in sheet.columns for cell in column.cells)


@pytest.mark.parametrize("width", [300, 120, 80, 40])
def test_a_terminal_shows_everything_at_any_width(width: int) -> None:
    names = [*NAMES, *(f"set-{number}" for number in range(12))]
    found = hostile(names)
    text = shown(found, width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    squeezed = re.sub(r"\s", "", text)
    for name in names:
        assert re.sub(r"\s", "", name) in squeezed
    if width >= 80:
        # The average and the lower row's score of each set, none lost between tables.
        assert text.count("42.5") == len(names) + 2
        assert text.count("10.0") == len(names) + 1
        assert all(run in text for run in ("[bold]up_1", "down&2"))


def test_a_wide_table_is_turned_if_that_fits() -> None:
    long = hostile([f"set-{number}" for number in range(20)], ("up", "down", "third"))
    lines = shown(long, 80).splitlines()
    assert lines[1].split() == ["1", "up", "2", "down", "3", "third"]
    assert next(line.split() for line in lines if line.startswith("set-7 ")) == ["set-7", "72.5*", "42.5", "10.0"]


def test_a_table_too_wide_either_way_is_cut_between_columns() -> None:
    # Every score is another number, from 10.0 to 19.5.
    points = {f"run-{row}": {f"set-{place}": 10 + row + place / 10 for place in range(6)} for row in range(10)}
    runs = [made_run(run, {name: [value / 100] * 2 for name, value in row.items()}) for run, row in points.items()]
    text = shown(compare(runs), 60)
    assert max(map(len, text.splitlines())) <= 60
    for run, row in points.items():
        lines = [line.split() for line in text.splitlines() if f" {run} " in line]
        assert len(lines) > 2
        assert {f"{value:.1f}" for value in row.values()} <= {word.rstrip("*") for line in lines for word in line}


def test_control_codes_of_names_reach_no_output() -> None:
    found = hostile([CONTROL, "other"], (f"a{CONTROL}", "b", "c"))
    assert any(CONTROL in note for note in compare([made_run("a"), made_run("b", model={"name": CONTROL})]).notes)
    for text in (shown(found, 200), to_markdown(found), to_latex(found)):
        assert "\x1b" not in text
        assert "esc\ufffd[31m\ufffdline" in text.replace("{[}", "[").replace("\\[", "[")


def test_notes_say_what_a_table_leaves_out() -> None:
    pool = {f"dataset-{number}": {"format": "pairs", "path": "x"} for number in range(3)}
    runs = [
        made_run("a", train=pool),
        made_run("b", seed=1, train=pool),
        made_run("c", training={"steps": 9, "batch_size": 1}),
    ]
    notes = "\n".join(make_notes(compare(runs)))
    assert "train differs: dataset-0, dataset-1, dataset-2 in a; msmarco, nq in c" in notes
    assert "Holm's correction over the 2 test sets" in notes
    assert "not for other seeds" in notes
    assert "Cost is relative to a, the first of several static rows." in notes
    assert "Caution: training.steps differs: 10 in a; 9 in c." in notes
    assert "Holm" not in "".join(make_notes(compare([made_run("a", {"x": HIGH}), made_run("b", {"x": LOW})])))


@pytest.mark.parametrize(("seconds", "gpus", "unit"), [(7200, 4, "GPU-hours"), (600, 0, "minutes"), (9, 0, "seconds")])
def test_costs_have_a_unit_in_which_they_can_be_read(seconds: float, gpus: int, unit: str) -> None:
    found = compare([made_run("a", seconds={"train": seconds, "probe": seconds / 4}, gpus=gpus)])
    sheet = make_sheets(found)[-1]
    assert sheet.title == f"Cost of a run in {unit}"
    amounts = {column.head: column.cells[0].text for column in sheet.columns}
    # Parts that no row has are left out.
    assert list(amounts) == [
        *("#", "run", "training", "probing", "total", "× static", "steps × static", "step-equivalents")
    ]
    expected = {"GPU-hours": "8.00", "minutes": "10.00", "seconds": "9.00"}
    assert (amounts["training"], amounts["× static"]) == (expected[unit], "1.00")


def test_html_shows_names_as_text() -> None:
    macros: Any = TEMPLATES.get_template("macros.html").module
    text = "".join(macros.table(sheet) for sheet in make_sheets(hostile()))
    assert "<script" not in text
    assert html.escape(NAMES[0]) in text
    assert text.count("<table>") == text.count("</table>") == 3
    assert "<b>72.5</b>*" in text


def test_a_model_that_was_only_tested_has_no_cost_in_any_format() -> None:
    found = compare([made_run("trained"), untrained("lexical")])
    *_, cost = make_sheets(found)
    assert [cell.text for cell in cost.columns[1].cells] == ["trained"]
    assert [line["cost.total"] for line in csv.DictReader(StringIO(to_csv(found)))] == ["0.5", ""]
    assert json.loads(to_json(found))["rows"][1]["cost"] == {
        "total": None, "relative_to_static": None, "step_equivalents": None,
    }  # fmt: skip
    only = compare([untrained("lexical")])
    assert len(make_sheets(only)) == 1
    assert not make_notes(only)
    assert "BM25" in to_markdown(only)
    assert "BM25" in to_latex(only)


def test_a_spreadsheet_executes_nothing() -> None:
    found = compare([made_run("=cmd|calc!A1"), made_run("-1", shifted(0.1))])
    assert [line["name"] for line in csv.DictReader(StringIO(to_csv(found)))] == ["'=cmd|calc!A1", "'-1"]


def test_a_model_card_gets_the_test_scores(tmp_path: Path) -> None:
    card = tmp_path / "README.md"
    scores = made_run("a").scores
    add_to_card(card, scores)
    assert not card.exists()
    card.write_text("# Model\n", encoding="utf-8")
    add_to_card(card, scores)
    text = card.read_text(encoding="utf-8")
    assert text.startswith("# Model\n\n## Test scores\n")
    assert "| big | 45.0 |" in text
