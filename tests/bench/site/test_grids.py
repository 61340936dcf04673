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
    assert shown.shared == (("F1 in the paper (%)", "90.4"), ("tier", "embedded"))
    assert [group.heading for group in shown.groups] == [("one",), ("two",)]
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


def test_truth_values_and_names_are_written_for_people():
    rows = [{"is_new": "True", "passes": "True"}, {"is_new": "False", "passes": "True"}] * 2
    shown = grid(rows)
    assert shown.shared == (("passes", "yes"),)
    assert shown.columns[0].heading == "is new"
    assert [row.cells[0].text for row in shown.groups[0].rows][:2] == ["yes", "no"]


@given(st.lists(st.fixed_dictionaries({key: st.sampled_from(["", "1", "2", "x y"]) for key in "abcd"}), max_size=8))
def test_no_text_of_a_table_is_lost(rows):
    shown = grid(rows)
    texts = [cell.text for group in shown.groups for row in group.rows for cell in row.cells]
    texts += [text for group in shown.groups for text in group.heading for _ in group.rows]
    texts += [text for _, text in shown.shared for _ in rows]
    assert sorted(filter(None, texts)) == sorted(text for row in rows for text in row.values() if text)
    assert shown.rows == len(rows)
