"""How files are cut: along headings, definitions, members, rows and paragraphs."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.chunking import words
from perdure.sections import DENSE_WORDS, WORDS, Section, sections

PROSE = " ".join(f"word{number}" for number in range(400))


def prose(count: int, name: str = "word") -> str:
    return " ".join(f"{name}{number}" for number in range(count))


def texts(text: str, path: str) -> list[str]:
    return [text[each.span.start : each.span.end] for each in sections(text, path)]


def lines(found: list[Section]) -> list[tuple[int, int]]:
    return [(each.first, each.last) for each in found]


def test_a_small_file_is_one_section_with_its_lines():
    (section,) = sections("\n# Plan\n\nShip on Friday.\n", "plan.md")

    assert (section.first, section.last, section.place) == (2, 4, "Plan")


@pytest.mark.parametrize("path", ["a.md", "a.py", "a.json", "a.csv", "a.toml", "a.txt"])
def test_an_empty_file_has_no_section(path: str):
    assert sections("", path) == sections("\n \n", path) == []


def test_each_heading_begins_a_section_that_knows_the_headings_above_it():
    headings = ("# Garden\n\n## Beds", "## Pond", "### Fish", "# House")
    text = "".join(f"{heading}\n\n{prose(70)}\n\n" for heading in headings)

    found = sections(text, "notes/plan.md")

    assert [each.place for each in found] == ["Garden", "Garden > Pond", "Garden > Pond > Fish", "House"]
    assert lines(found) == [(1, 5), (7, 9), (11, 13), (15, 17)]


def test_a_long_section_is_cut_at_paragraphs_and_each_part_keeps_the_heading():
    text = f"Garden\n======\n\n{prose(120)}\n\n{prose(120)}\n"

    found = sections(text, "a.md")

    assert lines(found) == [(1, 4), (6, 6)]
    assert [each.place for each in found] == ["Garden", "Garden"]


def test_short_sections_of_markdown_stay_together():
    assert len(sections("# A\n\none two\n\n# B\n\nthree four\n", "a.md")) == 1


def test_a_fence_is_not_cut_where_it_fits_and_its_headings_are_none():
    fence = "```sh\n# not a heading\n\n" + "\n".join(prose(10, f"line{n}x") for n in range(12)) + "\n```"
    text = f"# Setup\n\n{prose(100)}\n\n{fence}\n\nAfterwards {prose(100)}\n"

    found = texts(text, "a.md")

    assert fence in found
    assert all(each.place == "Setup" for each in sections(text, "a.md"))


def test_a_fence_that_is_too_long_is_cut_between_its_lines():
    text = "```\n" + "\n".join(prose(50, f"l{n}x") for n in range(8)) + "\n```\n"

    found = texts(text, "a.md")

    assert len(found) == 3
    assert all(words(each) <= WORDS for each in found)


def test_the_settings_before_a_text_are_no_headings():
    text = f"---\ntitle: a\n---\n\n{prose(80)}\n"

    assert [each.place for each in sections(text, "a.md")] == [""]


CODE = f'''import os

LIMIT = 3


class Boat:
    """{prose(60)}"""

    @property
    def name(self) -> str:
        return "{prose(40)}"

    def sail(
        self,
        wind: int,
    ) -> None:
        if wind:
            go("{prose(90)}")
        else:
            stay("{prose(20)}")


def moor() -> None:
    """{prose(50)}"""
'''


def test_code_is_cut_at_definitions_and_a_part_knows_what_it_stands_in():
    found = sections(CODE, "boat.py")
    parts = texts(CODE, "boat.py")

    assert parts[0].startswith("import os") and "class" not in parts[0]
    sail = next(n for n, part in enumerate(parts) if part.startswith("    def sail("))
    assert found[sail].place == "class Boat > def sail"
    assert parts[sail].endswith('")')
    assert next(part for part in parts if "def name" in part).count("@property") == 1
    assert parts[-1].startswith("def moor") and found[-1].place == "def moor() -> None"


def test_code_of_another_language_is_cut_alike():
    text = "".join(f"func f{n}() {{\n\tuse({prose(60)})\n}}\n\n" for n in range(4))

    parts = texts(text, "a.go")

    assert all(part.startswith("func") and part.endswith("}") for part in parts)


def test_json_is_cut_between_members_on_its_lines():
    text = json.dumps(
        {name: {"text": prose(100, name), "more": [1, 2, 3]} for name in ("alpha", "beta", "gamma")}, indent=2
    )

    found = sections(text, "a.json")

    assert len(found) == 3
    assert [each.place for each in found[1:]] == ["beta", "gamma"]
    assert text.splitlines()[found[1].first - 1] == '  "beta": {'
    assert found[2].last == len(text.splitlines())


def test_json_in_one_line_is_cut_between_items():
    text = json.dumps([{"id": n, "text": prose(60)} for n in range(6)])

    parts = texts(text, "a.json")

    assert len(parts) == 3
    assert all(part.lstrip("[").lstrip().startswith('{"id"') for part in parts)


def test_lines_of_json_are_cut_between_them():
    text = "".join(json.dumps({"at": n, "text": prose(60)}) + "\n" for n in range(6))

    assert lines(sections(text, "log.jsonl")) == [(1, 2), (3, 4), (5, 6)]


def test_rows_of_a_table_come_with_the_names_of_its_columns():
    text = "name,city,note\n" + "".join(f'ana{n},Graz,"first\nsecond {prose(20)}"\n' for n in range(30))

    found = sections(text, "people.csv")

    assert len(found) > 3
    assert found[0].place == ""
    assert {each.place for each in found[1:]} == {"name, city, note"}
    assert all(first % 2 == 0 and last % 2 == 1 for first, last in lines(found)[1:])


def test_a_stray_quote_does_not_make_a_table_one_row():
    text = "a\tb\n" + "".join(f'5" pipe {n}\t"{prose(10)}\n' for n in range(200))

    assert len(sections(text, "pipes.tsv")) > 10


def test_settings_are_cut_at_their_tables():
    text = "".join(f"[tool.{name}]\nvalue = '{prose(70)}'\n" for name in ("a", "b"))

    assert [each.place for each in sections(text, "pyproject.toml")] == ["tool.a", "tool.b"]


def test_prose_is_cut_at_paragraphs_and_entries():
    text = f"{prose(100)}\n\n{prose(100)}\n- {prose(100)}\n  {prose(20)}\n"

    assert lines(sections(text, "a.txt")) == [(1, 1), (3, 3), (4, 5)]


def test_an_overlong_line_becomes_several_spans_of_the_same_line():
    text = f"short\n{PROSE}\r\nshort"

    found = sections(text, "a.txt")

    assert lines(found) == [(1, 2), (2, 2), (2, 2), (3, 3)]  # the first line opens it
    assert text[found[2].span.start : found[2].span.end].endswith("word399")


def test_a_heading_stays_with_a_paragraph_that_is_too_long_alone():
    found = sections(f"# A\n\n## B\n\n{PROSE}\n\nshort\n", "a.md")

    assert lines(found) == [(1, 5), (5, 5), (5, 5), (7, 7)]


def test_a_byte_order_mark_hides_no_heading():
    assert sections("\ufeff# Plan\n\nShip.\n", "a.md")[0].place == "Plan"


PIECES = [
    *("", "  ", "# Head", "---", "```", "a b c", "    def f(x):", "one two three four five six", "日本語", "x " * 200),
    *('{"a": [1, 2], "b": {"c": "d"}}', '"open', "],}", "a,b,c", '"a\nb",c', "[t.x]", "- entry", "\ttab"),
]


@settings(deadline=None)
@given(st.lists(st.sampled_from(PIECES)), st.sampled_from(["md", "py", "json", "csv", "tsv", "toml", "txt"]))
def test_sections_cover_everything_but_space_in_order(pieces: list[str], ending: str):
    text = "\n".join(pieces)
    rows = text.split("\n")
    found = sections(text, f"a.{ending}")

    covered = {place for each in found for place in range(each.span.start, each.span.end)}
    assert all(text[place].isspace() for place in set(range(len(text))) - covered)
    assert [each.first for each in found] == sorted(each.first for each in found)
    for each in found:
        piece = text[each.span.start : each.span.end]
        assert words(piece) <= (WORDS if ending in ("md", "txt") else DENSE_WORDS)
        assert piece in "\n".join(rows[each.first - 1 : each.last])
