"""Words of any language are found, without any model: in memories, in conversations and in files."""

from __future__ import annotations

import re
import sqlite3
import unicodedata
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import create_engine

from conftest import StartStdio, StdioClient
from perdure import migrations
from perdure.words import found_share, index_form, match_expression, query_terms

# What was said, and a question that shares no more than some words with it, in another form where the language has any.
SAID = {
    "张伟对花生过敏，所以不吃花生酱。": "谁对花生过敏？",
    "会议改到星期三下午三点，在二楼。": "星期三几点开会？",
    "田中さんの誕生日は八月十二日です。": "田中さんの誕生日はいつですか",
    "新しいﾌﾟﾘﾝﾀは三階の廊下にある。": "プリンタはどこ？",
    "ＡＰＩキーは金庫に保管する。": "apiキー",
    "แมวของสมชายชื่อมะลิ": "แมวชื่ออะไร",
    "ร้านอาหารเปิดเวลาเก้าโมงเช้า": "ร้านเปิดกี่โมง",
    "회의가 월요일 오전으로 바뀌었다": "회의는 월요일",
    "Die neuen Wohnungen liegen nicht in der Bahnhofstraße.": "Wohnung Bahnhofstrasse",
    "Herr Müller und seine Frau mögen keine Bücher.": "Mueller Buch",
    "Der Schlüssel ist bei den Nachbarn.": "Welchen Schluessel hat der Nachbar?",
    "المدرسة الجديدة قرب النهر": "أين مدرسة",
    "قال أحمد إن الاجتماعات تبدأ يوم الأحد": "متى يبدأ اجتماع احمد؟",
    "وصلت السيّارة إلى البيت": "سيارة",
    "Ёлка стоит в старом офисе.": "елку в офис",
    "Встречи с Анной перенесли на четверг.": "Когда встреча с Анна?",
    "Οι συναντήσεις γίνονται κάθε Τρίτη": "συνάντηση τρίτη",
    "सीता को किताबें पढ़ना पसंद है": "किताब",
    "Les réunions de l'équipe ont lieu dans la cuisine.": "reunion equipe",
    "Las llaves están en los cajones de la mesa.": "llave cajón",
    "The deploys were moved to Friday.": "When do we deploy?",
}


@pytest.fixture
def words_only(start_stdio: StartStdio) -> StdioClient:
    client = start_stdio(PERDURE_EMBEDDER__KIND="none")
    client.initialize()
    return client


def first(client: StdioClient, query: str) -> str:
    """Return the content of the best hit, "" if there is none."""
    result = client.call("recall", query=query, limit=1)["structuredContent"]
    assert result["channels"] == ["words"]
    return result["hits"][0]["content"] if result["hits"] else ""


def test_words_of_any_language_find_a_memory(words_only: StdioClient) -> None:
    for text in SAID:
        words_only.call("remember", content=text)

    assert {first(words_only, query): query for query in SAID.values()} == SAID


def test_words_of_any_language_find_a_turn_of_a_conversation(words_only: StdioClient) -> None:
    for n, text in enumerate(SAID):
        words_only.call("append_history", thread=f"t{n}", turns=[{"role": "user", "content": text}])

    assert {first(words_only, query): query for query in SAID.values()} == SAID


def test_words_of_any_language_find_a_line_of_a_file(words_only: StdioClient) -> None:
    for n, text in enumerate(SAID):
        words_only.call("write_file", path=f"notes/{n}.md", content=text)

    assert {first(words_only, query): query for query in SAID.values()} == SAID


def test_words_of_a_neighbouring_turn_count_in_any_language(words_only: StdioClient) -> None:
    turns = ["花生过敏的人是谁？", "是我。", "好的。"]
    words_only.call("append_history", thread="a", turns=[{"role": "user", "content": turns[0]}])
    words_only.call("append_history", thread="a", turns=[{"role": "user", "content": text} for text in turns[1:]])
    words_only.call("append_history", thread="b", turns=[{"role": "user", "content": "天气很好。"}])

    found = words_only.call("recall", query="花生")["structuredContent"]["hits"]
    assert [hit["content"] for hit in found] == turns


@pytest.mark.parametrize("query", ["型", "血", "液"])
def test_a_lone_letter_is_found_wherever_it_stands_in_a_word(words_only: StdioClient, query: str) -> None:
    words_only.call("remember", content="私の血液型はA型です")

    assert first(words_only, query) == "私の血液型はA型です"


IDENTIFIERS = {
    "getUserName fails for guests": ("getUserName", "user name", "get_user_name"),
    "max_retry_count is too low": ("max_retry_count", "retry count", "max-retry-count"),
    "HTTPServer needs a certificate": ("HTTPServer", "http server"),
    "release 1.2.3 broke the import": ("1.2.3", "v 1.2.3"),
    "write to ana.lee@example.org": ("ana.lee@example.org", "lee", "example.org"),
    "see server/perdure/words.py": ("server/perdure/words.py", "words.py", "perdure"),
    "the flag is --dry-run": ("--dry-run", "dry-run"),
}
SCATTERED = (
    "3 apples, 2 pears and 1 plum",
    "the user likes to count",
    "get the name of a guest",
    "retry the max, then run until dry",
    "an example of words to write to the server in py for ana",
)


def test_identifiers_are_found_whole_and_by_their_parts(words_only: StdioClient) -> None:
    for text in (*SCATTERED, *IDENTIFIERS, *SCATTERED):
        words_only.call("remember", content=text)

    wanted = {query: text for text, queries in IDENTIFIERS.items() for query in queries}
    assert {query: first(words_only, query) for query in wanted} == wanted


@pytest.mark.parametrize(
    "text",
    [
        "Caroline went to the LGBTQ support group yesterday — and it was so powerful… “really”! ❤️",
        "Don't you think 3.5 km is far? I've been to the café-bar.".replace("é", "e"),
        "in the house of the rising sun",
    ],
)
def test_english_is_indexed_as_it_is(text: str) -> None:
    assert re.findall(r"\w+", index_form(text).lower()) == re.findall(r"\w+", text.lower())


def test_an_english_question_asks_for_its_words_without_stop_words() -> None:
    terms = query_terms("What did Caroline's sister paint for the school's party in May?")

    assert [term.forms for term in terms] == [("caroline",), ("sister",), ("paint",), ("school",), ("party",), ("may",)]
    assert [term.forms for term in query_terms("who are you")] == [("who",), ("are",), ("you",)]


def test_a_question_in_another_language_leaves_its_function_words_out() -> None:
    asked = [term.forms[0] for term in query_terms("Wo hat meine Schwester ihre Brille gekauft?")]

    assert asked == ["schwester", "brille", "gekauft"]


def test_a_mark_after_a_name_is_no_part_of_it() -> None:
    assert index_form("Perdure™ läuft").split()[0] == "perdure"


@pytest.mark.parametrize(
    ("query", "content", "share"),
    [
        ("deploy window", "The Deploy happens", 0.5),
        ("花生", "张伟对花生过敏", 1),
        ("花生酱", "张伟对花生过敏", 0.5),
        ("型", "血液型", 1),
        ("Mueller", "Frau Müller", 1),
        ("cafe", "Café", 1),
        ("مدرسة", "المدرسة", 1),
        ("get_user_name", "getUserName", 1),
        ("snake_case", "snakes in a case", 2 / 3),
        ("", "anything", 0),
    ],
)
def test_the_share_of_the_terms_a_text_has(query: str, content: str, share: float) -> None:
    assert found_share(query_terms(query), content) == pytest.approx(share)


@settings(deadline=None)
@given(st.text())
def test_any_text_is_found_by_all_of_its_own_words(text: str) -> None:
    terms = query_terms(text)

    assert found_share(terms, text) == (1 if terms else 0)


LETTERS = "".join(  # of the scripts that differ, old enough for any SQLite
    chr(code)
    for first, last in (
        (0x20, 0x7E),
        (0xC0, 0x17F),
        (0x38E, 0x3A1),
        (0x3A3, 0x3CE),
        (0x400, 0x45F),
        (0x5D0, 0x5EA),
        (0x621, 0x652),
        (0x905, 0x939),
        (0x93E, 0x94D),
        (0xE01, 0xE3A),
        (0x3041, 0x3096),
        (0x30A1, 0x30FC),
        (0x4E00, 0x4E40),
        (0xAC00, 0xAC20),
        (0xFF10, 0xFF9D),
    )
    for code in range(first, last + 1)
)


@settings(deadline=None)
@given(st.text(alphabet=LETTERS))
def test_the_full_text_table_finds_any_text_by_its_own_words(text: str) -> None:
    terms = query_terms(text)
    store = sqlite3.connect(":memory:")
    store.execute(
        "CREATE VIRTUAL TABLE words USING fts5("
        " body, tokenize=\"porter unicode61 remove_diacritics 2 categories 'L* N* Co M*'\")"
    )
    store.execute("INSERT INTO words VALUES (?)", (index_form(text),))

    found = store.execute("SELECT count(*) FROM words WHERE words MATCH ?", (match_expression(terms),)) if terms else ()
    assert [row for (row,) in found] == ([1] if terms else [])
    store.close()


def test_texts_written_in_two_forms_of_unicode_are_the_same_words() -> None:
    for text in SAID:
        assert query_terms(unicodedata.normalize("NFD", text)) == query_terms(unicodedata.normalize("NFC", text))


@pytest.mark.sqlite(reason="Postgres had no such schema")
def test_a_store_of_the_first_schema_finds_words_of_any_language(start_stdio: StartStdio, data_dir: Path) -> None:
    data_dir.mkdir(mode=0o700)
    engine = create_engine(f"sqlite:///{data_dir / 'perdure.db'}")
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
        for n, text in enumerate(SAID, 1):
            connection.exec_driver_sql(
                "INSERT INTO passage (id, namespace, type, subject, seq, at, words, hidden, version, first_line,"
                " last_line, text)"
                " VALUES (?, 'default', 'file', ?, ?, '2026-01-01T00:00:00.000000Z', 5, 0, 1, 1, 1, ?)",
                (n, f"{n}.md", n, text),
            )
            connection.exec_driver_sql("INSERT INTO passage_fts (rowid, body, context) VALUES (?, ?, '')", (n, text))
    engine.dispose()

    client = start_stdio(PERDURE_EMBEDDER__KIND="none")
    client.initialize()
    assert {first(client, query): query for query in SAID.values()} == SAID
