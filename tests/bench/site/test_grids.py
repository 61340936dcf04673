"""Tables as the site shows them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from workflow.bench.site.grids import Cell, grid

ROWS = [
    {
        "experiment": experiment,
        "optimizer": optimizer,
        "F1 here (%)": f"{value} [80, 95]",
        "F1 in the paper (%)": "90.4",
        "tier": "embedded",
        "note": "",
        "data": "a.runs.csv: runs x1, x2; a.csv: runs x1",
    }
    for optimizer, value in (("sgd", "91"), ("mkor", "92.5"), ("kaisa", "not reached"))
    for experiment in ("one", "two")
]


def test_columns_that_say_nothing_are_left_out_and_groups_have_headings():
    shown = grid(ROWS)
    assert [column.key for column in shown.columns] == ["optimizer", "F1 here (%)"]
    assert shown.shared == (("F1 in the paper (%)", Cell("90.4")), ("tier", Cell("embedded")))
    assert [group.heading for group in shown.groups] == [(Cell("one"),), (Cell("two"),)]
    assert shown.rows == 6
    assert [source.file for source in shown.groups[0].rows[0].sources] == ["a.runs.csv", "a.csv"]


def test_an_interval_stands_apart_from_its_value_and_does_not_break():
    cells = [row.cells[1] for row in grid(ROWS).groups[0].rows]
    assert cells[0] == Cell("91", "[80,\u00a095]")
    assert cells[2] == Cell("not reached", "[80,\u00a095]")
    assert grid([{"a": "a copy of a matrix [d, d]"}]).groups[0].rows[0].cells == (Cell("a copy of a matrix [d, d]"),)


def test_a_table_that_compares_with_the_paper_says_which_column_is_whose():
    rows = [{"F1 here (%)": "9", "F1 in the paper (%)": str(value)} for value in (1, 2)]
    columns = grid(rows).columns
    assert [(column.heading, column.side) for column in columns] == [("F1 (%)", "here"), ("F1 (%)", "paper")]
    assert [column.label for column in columns] == ["F1 (%), here", "F1 (%), paper"]
    alone = grid([{"where in the paper": "Table 2"}, {"where in the paper": "Table 3"}]).columns
    assert [(column.heading, column.side) for column in alone] == [("where in the paper", "")]


def test_columns_of_numbers_and_of_words_in_their_place_are_aligned_as_numbers():
    rows = [
        {"a": "1.5 [1, 2]", "b": "1, 2", "c": "-3e-5", "d": "8 (d = 4)", "e": "mkor"},
        {"a": "not reached [1, 2]", "b": "3", "c": "D", "d": "9", "e": "sgd"},
    ]
    assert [column.is_number for column in grid(rows).columns] == [True, False, True, False, False]


def test_bounds_in_columns_of_their_own_become_the_interval_of_their_value():
    rows = [
        {"end": "0.8", "end, low": "0.7", "end, high": "not reached", "cost, low": "1"},
        {"end": "0.9", "end, low": "", "end, high": "", "cost, low": "2"},
    ]
    shown = grid(rows)
    assert [column.key for column in shown.columns] == ["end", "cost, low"]
    assert [row.cells[0] for row in shown.groups[0].rows] == [Cell("0.8", "[0.7,\u00a0not\u00a0reached]"), Cell("0.9")]


def test_identifiers_have_their_names_and_stay_as_tooltips():
    rows = [{"experiment": "update_rules", "workload": "resnet20", "optimizer": name} for name in ("mkor_h", "my_own")]
    cells = [row.cells for row in grid(rows).groups[0].rows]
    assert [cell.text for cell in cells[0]] == ["The three update rules of MKOR side by side", "ResNet-20", "MKOR-H"]
    assert [cell.identifier for cell in cells[0]] == ["update_rules", "resnet20", "mkor_h"]
    assert cells[1][2] == Cell("my_own")
    assert grid([{"less time than kaisa": "1"}]).columns[0].heading == "less time than KFAC (KAISA)"


def test_a_closed_group_tells_what_is_inside():
    rows = [{"workload": "a", "optimizer": f"o{number}"} for number in range(12)]
    rows += [{"workload": "b", "optimizer": "o1"}] * 3
    inside = [group.inside for group in grid(rows).groups]
    assert inside == ["o0, o1, o2, o3, o4, o5, o6, o7 and 4 more", "o1"]


def test_truth_values_and_names_are_written_for_people():
    rows = [{"is_new": "True", "passes": "True"}, {"is_new": "False", "passes": "True"}] * 2
    shown = grid(rows)
    assert shown.shared == (("passes", Cell("yes")),)
    assert shown.columns[0].heading == "is new"
    assert [row.cells[0].text for row in shown.groups[0].rows][:2] == ["yes", "no"]


@given(st.lists(st.fixed_dictionaries({key: st.sampled_from(["", "1", "2", "x y"]) for key in "abcd"}), max_size=8))
def test_no_text_of_a_table_is_lost(rows):
    shown = grid(rows)
    texts = [cell.text for group in shown.groups for row in group.rows for cell in row.cells]
    texts += [cell.text for group in shown.groups for cell in group.heading for _ in group.rows]
    texts += [cell.text for _, cell in shown.shared for _ in rows]
    assert sorted(filter(None, texts)) == sorted(text for row in rows for text in row.values() if text)
    assert shown.rows == len(rows)
