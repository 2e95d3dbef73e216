import base64

from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.chunking import split, split_lines, words
from perdure.types import Span

PROSE = " ".join(f"word{number}" for number in range(400))


def texts(spans: list[Span], text: str) -> list[str]:
    return [text[span.start : span.end] for span in spans]


def test_a_short_text_is_one_span():
    assert split("The deploy window is Tuesday.") == [Span(0, 29)]


def test_a_blank_text_has_no_span():
    assert split("") == split(" \n\t ") == []


def test_a_text_of_exactly_the_limit_is_one_span_and_one_word_more_makes_two():
    assert len(split(" ".join(["a"] * 170))) == 1
    assert len(split(" ".join(["a"] * 171))) == 2


def test_windows_overlap_and_end_with_the_last_word():
    pieces = texts(split(PROSE), PROSE)

    assert [piece.split()[0] for piece in pieces] == ["word0", "word130", "word260"]
    assert [piece.split()[-1] for piece in pieces] == ["word169", "word299", "word399"]


def test_a_chinese_text_without_spaces_is_cut_like_any_other():
    text = "部署窗口是星期二。" * 200

    pieces = texts(split(text), text)

    assert len(pieces) > 5
    assert max(map(words, pieces)) == 170


def test_a_thai_vowel_sign_stays_with_its_letter():
    assert words("ที่นี่") == 2


def test_words_of_spaced_scripts_count_as_people_count_them():
    assert words("Don't panic: it's 42 °C in São Paulo, 서울은 비가 온다.") == 11


def test_paths_and_code_count_as_the_pieces_a_model_sees():
    assert words("/srv/app/config.toml") == 5
    assert words("self._words[number]") == 3


def test_a_long_run_without_spaces_is_cut_too():
    blob = base64.b64encode(bytes(30_000)).decode()

    assert max(map(len, texts(split(blob), blob))) <= 170 * 16


@settings(deadline=None)
@given(st.text(max_size=400), st.integers(1, 12), st.integers(1, 12))
def test_spans_cover_everything_but_space_and_never_exceed_the_window(text: str, window: int, stride: int):
    spans = split(text, words=window, stride=min(window, stride))

    covered = {place for span in spans for place in range(span.start, span.end)}
    assert all(text[place].isspace() for place in set(range(len(text))) - covered)
    assert all(words(piece) <= window for piece in texts(spans, text))
    assert all(piece == piece.strip() for piece in texts(spans, text))


def test_a_small_file_is_one_section_with_its_lines():
    assert split_lines("\n# Plan\n\nShip on Friday.\n") == [(Span(1, 24), 2, 4)]


def test_an_empty_file_has_no_section():
    assert split_lines("") == split_lines("\n\n") == []


def test_a_section_ends_before_a_heading_rather_than_at_the_limit():
    text = "one two three four five six\n\n# Next\nseven eight nine ten\neleven twelve\n"

    assert [lines for _, *lines in split_lines(text, words=10)] == [[1, 1], [3, 5]]


def test_a_section_ends_at_a_blank_line_when_there_is_no_heading():
    text = "one two three four five six\n\nseven eight\nnine ten eleven twelve\n"

    assert [lines for _, *lines in split_lines(text, words=10)] == [[1, 1], [3, 4]]


def test_lines_without_any_break_are_cut_at_the_limit():
    text = "a b c d\n" * 5

    assert [lines for _, *lines in split_lines(text, words=10)] == [[1, 2], [3, 4], [5, 5]]


def test_an_overlong_line_becomes_several_spans_of_the_same_line():
    text = f"short\n{PROSE}\r\nshort"

    sections = split_lines(text)

    assert [lines for _, *lines in sections] == [[1, 1], [2, 2], [2, 2], [2, 2], [3, 3]]
    assert text[sections[3][0].start : sections[3][0].end].endswith("word399")


@settings(deadline=None)
@given(st.lists(st.sampled_from(["", "  ", "# Heading", "a b c", "one two three four five six", "日本語", "x " * 30])))
def test_sections_cover_every_line_in_order(lines: list[str]):
    text = "\n".join(lines)
    sections = split_lines(text, words=12)

    covered = {number for _, first, last in sections for number in range(first, last + 1)}
    assert covered >= {number for number, line in enumerate(lines, start=1) if line.strip()}
    assert [first for _, first, _ in sections] == sorted(first for _, first, _ in sections)
    for span, first, last in sections:
        piece = text[span.start : span.end]
        assert words(piece) <= 12
        assert piece in "\n".join(lines[first - 1 : last])
