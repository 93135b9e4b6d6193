import math

import pytest

from moebench.show.text import clean, counted, figure, ratio, short, some


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1133.127658609822, "1133"),
        (67.86348803914717, "67.86"),
        (0.7512, "0.7512"),
        (0.00001, "1e-05"),
        (123456.7, "123457"),
        (0, "0"),
        (5, "5.000"),
        (None, "-"),
        (math.nan, "-"),
        (math.inf, "-"),
    ],
)
def test_figure_has_four_significant_digits(value, text):
    assert figure(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(1225208.7, "1.23M"), (416_000, "416k"), (19_900, "19.9k"), (7.5, "7.5"), (2e9, "2.00G"), (None, "-")],
)
def test_short_has_three_significant_digits_and_a_unit(value, text):
    assert short(value) == text


def test_ratio_is_green_when_faster_and_red_when_slower():
    assert [(str(ratio(value)), ratio(value).style) for value in (1.25, 0.8, 1.0)] == [
        ("1.25x", "green"),
        ("0.80x", "red"),
        ("1.00x", ""),
    ]
    assert str(ratio(math.inf)) == "-"


def test_clean_shows_control_characters_instead_of_obeying_them():
    assert clean("a\x1b[31mb\nc\td\u202e\x9b") == "a\\x1b[31mb c d\\u202e\\x9b"
    assert clean("Müller 日本") == "Müller 日本"


def test_lists_are_cut_and_counted():
    assert some(["a", "b", "c", "d"]) == "a, b, c, d"
    assert some("abcde") == "a, b, c and 2 more"
    assert (counted(1, "case"), counted(0, "case")) == ("1 case", "0 cases")
