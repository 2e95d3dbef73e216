import base64

from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.chunking import split, words
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
