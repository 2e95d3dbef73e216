"""remember, recall, forget and history, as a client sees them."""

from __future__ import annotations

import itertools
from pathlib import Path

from conftest import Json, StartStdio, StdioClient, environment, run, store_of
from recalls import settle


def hits(client: StdioClient, query: str, **arguments: object) -> list[Json]:
    answer = client.call("recall", query=query, **arguments)
    assert not answer["isError"], answer
    return answer["structuredContent"]["hits"]


def texts(client: StdioClient, query: str, **arguments: object) -> list[str]:
    return [hit["content"] for hit in hits(client, query, **arguments)]


def remember(client: StdioClient, content: str, **arguments: object) -> Json:
    answer = client.call("remember", content=content, **arguments)
    assert not answer["isError"], answer
    return answer["structuredContent"]


def test_a_key_has_one_current_value_and_as_of_finds_the_former_one(client: StdioClient) -> None:
    old = remember(client, "The user lives in Berlin", key="user.city", at="2020-01-01")
    new = remember(client, "The user lives in Paris", key="user.city", at="2022-01-01")
    assert new["superseded"] == [old["id"]]
    assert texts(client, "where does the user live", key="user.city") == ["The user lives in Paris"]
    (then,) = hits(client, "where does the user live", as_of="2021-06-01")
    assert (then["content"], then["superseded_by"]) == ("The user lives in Berlin", new["id"])
    assert hits(client, "where does the user live", as_of="2019-06-01") == []


def test_a_question_about_the_past_reaches_all_former_values_in_a_small_store(client: StdioClient) -> None:
    for month in range(1, 10):
        remember(client, f"Person {month} is on call.", key="oncall", at=f"2026-0{month}-01")
    answer = client.call("recall", query="Who was on call in March 2026?", limit=20)["structuredContent"]
    assert answer["hits"][0]["content"] == "Person 3 is on call."
    assert len(answer["hits"]) == answer["searched"]["memories"] == 9
    assert client.call("recall", query="Who is on call?")["structuredContent"]["searched"]["memories"] == 1


def test_as_of_says_that_files_changed_since_are_left_out(client: StdioClient) -> None:
    client.call("write_file", path="plan.md", content="The code word is albatross.")
    early = client.call("recall", query="code word", as_of="2020-01-01")["structuredContent"]
    assert not early["hits"]
    assert any("read_file" in reason for reason in early["degraded"])
    assert "degraded" not in client.call("recall", query="code word")["structuredContent"]


def test_supersedes_names_the_memory_it_replaces(client: StdioClient) -> None:
    old = remember(client, "Standup is at nine")
    new = remember(client, "Standup is at ten", supersedes=old["id"])
    assert new["superseded"] == [old["id"]]
    assert texts(client, "when is standup") == ["Standup is at ten"]
    again = client.call("remember", content="Standup is at eleven", supersedes=old["id"])
    assert again["isError"]
    assert new["id"] in again["content"][0]["text"]


def test_b103_the_same_text_is_stored_once(client: StdioClient) -> None:
    first = remember(client, "The kettle is in the LEFT cupboard")
    for _ in range(5):
        again = remember(client, " The kettle is in the LEFT cupboard\n")
        assert (again["id"], again["created"], again["duplicate"]) == (first["id"], False, True)
    assert len(hits(client, "kettle cupboard")) == 1


def test_history_tells_each_time_a_statement_was_made(client: StdioClient) -> None:
    first = remember(client, "The kettle is in the left cupboard", thread="kitchen")
    remember(client, "The kettle is in the left cupboard", thread="moving", at="2026-03-01T10:00:00Z")
    remember(client, "The kettle is in the left cupboard", thread="moving", at="2026-03-01T11:00:00Z")
    for thread, times in (("kitchen", 1), ("moving", 2)):
        told = client.call("list_history", thread=thread)["structuredContent"]["episodes"]
        assert [episode["kind"] for episode in told] == ["remember"] * times, told
    (shown,) = [each for each in told if each["subject"] != first["id"]][:1]
    assert shown["content"] == "The kettle is in the left cupboard"


def test_the_same_idempotency_key_returns_the_first_receipt_and_writes_nothing(client: StdioClient) -> None:
    first = remember(client, "Parcel on Friday", idempotency_key="k1")
    assert remember(client, "Parcel on Friday", idempotency_key="k1")["id"] == first["id"]
    turns = [{"role": "user", "content": "hello"}]
    appended = client.call("append_history", thread="t", turns=turns, idempotency_key="k2")["structuredContent"]
    assert client.call("append_history", thread="t", turns=turns, idempotency_key="k2")["structuredContent"] == appended
    written = {"path": "a.md", "content": "x", "mode": "append", "idempotency_key": "k3"}
    assert client.call("write_file", **written)["structuredContent"]["bytes"] == 1
    assert client.call("write_file", **written)["structuredContent"]["bytes"] == 1
    odd = client.call("remember", content="Another text", idempotency_key="k1")
    assert odd["structuredContent"]["id"] == first["id"]
    assert "nothing was written now" in odd["structuredContent"]["note"]
    assert "nothing was written now" in odd["content"][0]["text"]
    other = client.call("remember", content="Another text", idempotency_key="k2")
    assert other["isError"]
    assert "new key" in other["content"][0]["text"]
    kinds = [e["kind"] for e in client.call("list_history")["structuredContent"]["episodes"]]
    assert sorted(kinds) == ["remember", "turn", "write_file"]


def test_forget_hides_at_once_everywhere_and_can_be_undone(client: StdioClient) -> None:
    id = remember(client, "The alarm code is heliotrope")["id"]
    receipt = client.call("forget", id=id, reason="asked to")["structuredContent"]
    assert receipt["forgotten"]
    assert receipt["recoverable_until"] > "2026"
    assert hits(client, "alarm code heliotrope") == []
    history = client.call("list_history")
    assert "heliotrope" not in str(history)
    client.call("forget", id=id, undo=True)
    assert texts(client, "alarm code") == ["The alarm code is heliotrope"]


def test_filters_hold_before_the_best_are_taken(client: StdioClient) -> None:
    for n in range(30):
        remember(client, f"trip report number {n}", tags=["noise"], at="2021-01-01")
    remember(client, "trip report of the quiet valley", tags=["keep", "walk"], kind="event", at="2023-05-05")
    for filters in (
        {"tags": ["keep"]},
        {"tags": ["keep", "walk"]},
        {"kind": "event"},
        {"since": "2023-01-01"},
        {"since": "2023-05-05", "until": "2023-05-05"},
    ):
        assert texts(client, "trip report number", limit=1, **filters) == ["trip report of the quiet valley"], filters
    assert len(hits(client, "trip report", limit=40, max_chars=40000, until="2021-01-01")) == 30


def test_b109_every_match_of_a_filter_is_reached_page_by_page(client: StdioClient) -> None:
    for n in range(57):
        remember(client, f"packing list entry {n}", tags=["trip"])
    for n in range(20):
        remember(client, f"unrelated remark {n}")
    seen: list[str] = []
    page: Json = {}
    while True:
        answer = client.call("recall", query="packing list", tags=["trip"], limit=20, **page)["structuredContent"]
        seen += [hit["id"] for hit in answer["hits"]]
        if "next_cursor" not in answer:
            break
        page = {"cursor": answer["next_cursor"]}
    assert len(seen) == len(set(seen)) == 57


def test_an_expired_memory_is_not_recalled(client: StdioClient) -> None:
    remember(client, "The visitor badge is 12", expires_at="2020-01-01", at="2019-12-01")
    assert hits(client, "visitor badge") == []
    assert texts(client, "visitor badge", as_of="2019-12-15") == ["The visitor badge is 12"]


def test_a_receipt_of_what_has_expired_already_says_so_and_does_not_claim_that_it_is_found(
    start_stdio: StartStdio, tmp_path: Path
) -> None:
    client = start_stdio()
    client.initialize()
    said = "It has expired already (2020-01-01T00:00:00+00:00), so recall without as_of does not show it."
    told = {"content": "The visitor badge is 12", "expires_at": "2020-01-01", "idempotency_key": "badge"}
    for _ in range(2):  # the first time, and when it is sent again
        answer = client.call("remember", **told)
        assert answer["structuredContent"]["note"] == said
        assert said in answer["content"][0]["text"] and "finds it" not in answer["content"][0]["text"]
    valid = client.call("remember", content="The visitor badge is 13", expires_at="2900-01-01")
    again = client.call("remember", content="The visitor badge is 13", expires_at="2020-01-01")
    for answer in (valid, again):  # what lasts longer by an earlier statement lasts
        assert "note" not in answer["structuredContent"]

    words = ["remember", "The visitor badge is 14", "--expires-at", "2020-01-01"]
    ran = run(*words, env=environment(tmp_path / "data"))
    assert said in ran.stderr and "Found" not in ran.stderr
    ran = run("pin", ran.stdout.strip(), env=environment(tmp_path / "data"))
    assert "is pinned." in ran.stdout and "It has expired, so no context shows it." in ran.stderr


def test_empty_is_explained(client: StdioClient) -> None:
    def why(**arguments: object) -> str:
        return client.call("recall", query="zebra", **arguments)["structuredContent"]["empty_reason"]

    assert why() == "nothing_stored"
    remember(client, "A zebra has stripes")
    assert why(tags=["none"]) == "filtered_out"
    assert why(min_score=1) == "below_min_score"


def test_recall_covers_memories_turns_and_files_in_one_ranking(client: StdioClient) -> None:
    remember(client, "The ferry to Bergen leaves at noon")
    turns = [{"role": "user", "name": "Ann", "content": "I booked the ferry", "at": "2024-05-01T10:00:00+02:00"}]
    client.call("append_history", thread="norway", turns=turns)
    client.call("write_file", path="plan.md", content="# Plan\n\n- ferry tickets\n")
    found = {hit["type"]: hit for hit in hits(client, "ferry")}
    assert set(found) == {"memory", "turn", "file"}
    assert found["turn"]["at"] == "2024-05-01T08:00Z"
    assert found["turn"]["thread"] == "norway"
    assert (found["file"]["path"], found["file"]["version"], found["file"]["lines"]) == ("plan.md", 1, "1-3")
    assert [hit["type"] for hit in hits(client, "ferry", include=["files"])] == ["file"]
    client.call("write_file", path="plan.md", content="# Plan\n\n- train tickets\n")
    assert hits(client, "ferry", include=["files"]) == [] or "train" in texts(client, "ferry", include=["files"])[0]


def test_b108_history_pages_hold_every_episode_once(client: StdioClient) -> None:
    turns = [{"role": "user", "content": f"line {n}"} for n in range(120)]
    for first in (0, 60):
        client.call("append_history", thread="long", turns=turns[first : first + 60])
    for order in ("newest", "oldest"):
        seen: list[int] = []
        page: Json = {}
        while True:
            asked: Json = {"thread": "long", "kinds": ["turn"], "limit": 50, "order": order}
            answer = client.call("list_history", **asked, **page)["structuredContent"]
            seen += [episode["seq"] for episode in answer["episodes"]]
            remember(client, f"meanwhile {order} {len(seen)}")
            if "next_cursor" not in answer:
                break
            page = {"cursor": answer["next_cursor"]}
        assert len(seen) == len(set(seen)) == 120
        assert seen == sorted(seen, reverse=order == "newest")
    wrong = client.call("list_history", thread="other", cursor=page["cursor"])
    assert wrong["isError"]


def test_threads_are_listed_with_their_times(client: StdioClient) -> None:
    for thread, at in (("a", "2020-01-01"), ("b", "2021-01-01")):
        client.call("append_history", thread=thread, turns=[{"role": "user", "content": "x", "at": at}])
    threads = client.call("list_history", kinds=["thread"])["structuredContent"]["threads"]
    assert [thread["thread"] for thread in threads] == ["b", "a"]
    assert threads[0]["first_at"] == "2021-01-01T00:00:00+00:00"


def test_a_conversation_is_logged_whole_or_not_at_all(client: StdioClient) -> None:
    turns = [{"role": "user", "content": "fine"}, {"role": "user", "content": "bad", "at": "yesterday"}]
    answer = client.call("append_history", thread="t", turns=turns)
    assert answer["isError"]
    assert "turns[1].at" in answer["content"][0]["text"]
    assert client.call("list_history")["structuredContent"]["episodes"] == []


def test_a_longer_answer_than_max_chars_is_cut_at_an_item_and_goes_on(client: StdioClient) -> None:
    for n in range(12):
        remember(client, f"gardening note {n} " + "soil and seed " * 20)
    seen: list[str] = []
    page: Json = {}
    while True:
        answer = client.call("recall", query="gardening note", limit=12, max_chars=2000, **page)
        assert len(answer["content"][0]["text"]) <= 2000
        found = answer["structuredContent"]
        seen += [hit["id"] for hit in found["hits"]]
        if "next_cursor" not in found:
            break
        page = {"cursor": found["next_cursor"]}
    assert len(seen) == len(set(seen)) == 12


def test_b63_rows_damaged_by_hand_do_not_break_recall_or_history(start_stdio: StartStdio, data_dir: Path) -> None:
    first = start_stdio()
    first.initialize()
    id = remember(first, "An odd row about walnuts")["id"]
    first.end_input()
    with store_of(data_dir) as db:
        db.execute("UPDATE memory SET tags = '', metadata = 'null', kind = 'alien', content = '' WHERE id = ?", (id,))
        db.execute("UPDATE episode SET at = '1970-01-01T00:00:00.000000+00:00'")
    db.close()
    client = start_stdio()
    client.initialize()
    (hit,) = hits(client, "walnuts")
    assert (hit["id"], hit["kind"]) == (id, "alien")
    (episode,) = client.call("list_history")["structuredContent"]["episodes"]
    assert episode["at"] == "1970-01-01T00:00:00+00:00"


def test_a_newer_store_is_refused_and_left_alone(start_stdio: StartStdio, data_dir: Path) -> None:
    first = start_stdio()
    first.initialize()
    remember(first, "x")
    first.end_input()
    with store_of(data_dir) as db:
        db.execute("UPDATE alembic_version SET version_num = '9999'")
    db.close()
    client = start_stdio()
    client.initialize()
    answer = client.request("tools/call", {"name": "recall", "arguments": {"query": "x"}})
    assert "9999" in str(answer)
    with store_of(data_dir) as db:
        assert db.execute("SELECT count(*) FROM memory").fetchone() == (1,)
    db.close()


def test_one_long_memory_does_not_hide_the_others(client: StdioClient) -> None:
    short = [f"The heron colony counted {n} nests this spring" for n in range(5)]
    for content in short:
        remember(client, content)
    remember(client, "Notes on the heron colony and its nests in spring. " * 1200)
    found = texts(client, "how many nests did the heron colony count", limit=10, max_chars=40000)
    assert set(short) <= set(found)


def test_pages_of_a_large_store_repeat_nothing(client: StdioClient) -> None:
    turns = [{"role": "user", "content": f"harvest report {n} from field {n % 7}"} for n in range(300)]
    for first in range(0, 300, 100):
        client.call("append_history", thread="farm", turns=turns[first : first + 100])
    seen: list[str] = []
    page: Json = {}
    while True:
        answer = client.call("recall", query="harvest report field", limit=60, max_chars=40000, **page)
        found = answer["structuredContent"]
        seen += [hit["id"] for hit in found["hits"]]
        if "next_cursor" not in found:
            break
        page = {"cursor": found["next_cursor"]}
    assert len(seen) == len(set(seen)) == 300


def test_what_expired_can_be_remembered_again(client: StdioClient) -> None:
    old = remember(client, "The visitor code is 12", expires_at="2020-01-01", at="2019-12-01")
    new = remember(client, "The visitor code is 12")
    assert (new["created"], new["id"] != old["id"]) == (True, True)
    assert texts(client, "visitor code") == ["The visitor code is 12"]


def test_stating_a_memory_again_adds_its_new_tags(client: StdioClient) -> None:
    remember(client, "The well is deep", tags=["farm"])
    assert remember(client, "The well is deep", tags=["water"])["duplicate"]
    assert hits(client, "well", tags=["water"])[0]["tags"] == ["farm", "water"]


def test_stating_a_memory_again_fills_in_what_was_not_said_before(client: StdioClient) -> None:
    first = remember(client, "The mill burned down", at="1911-05-04T10:00:00Z")
    again = remember(client, "The mill burned down", thread="village", kind="event", at="1911-05-04")
    assert (again["id"], again["duplicate"]) == (first["id"], True)
    for filters in ({"thread": "village"}, {"kind": "event"}, {"until": "1911-05-04"}, {"as_of": "1950-01-01"}):
        (hit,) = hits(client, "mill", **filters)
        assert (hit["id"], hit["kind"], hit["at"]) == (first["id"], "event", "1911-05-04T00:00Z"), filters
    remember(client, "The mill burned down", thread="other", kind="fact", at="1911-05-04T23:59:59Z")
    assert remember(client, "The mill burned down")["duplicate"]
    (hit,) = hits(client, "mill")
    assert (hit["thread"], hit["kind"], hit["at"][:4]) == ("village", "event", "1911")


def test_passwords_that_differ_in_case_are_two_statements(client: StdioClient) -> None:
    told = ["The database password is hunter2XK.", "The database password is Hunter2xk."]
    ids = {remember(client, content)["id"] for content in told}
    assert len(ids) == 2
    episodes = client.call("list_history", order="oldest")["structuredContent"]["episodes"]
    assert [episode["content"] for episode in episodes] == told
    for n, content in enumerate(told):
        receipt = remember(client, content, key="db.password")
        assert (receipt["created"], len(receipt.get("superseded", ()))) == (True, n)
        assert texts(client, "database password", key="db.password") == [content]


def test_case_spaces_within_and_compatibility_forms_make_another_statement(client: StdioClient) -> None:
    told = ["The café opens at 9", "the café opens at 9", "The café  opens at 9", "The café\nopens at 9"]
    told += ["The café opens at ９", "10² cups a day", "102 cups a day", "if open:\n    enter", "if open:\n  enter"]
    assert all(remember(client, content)["created"] for content in told)
    assert not any(remember(client, content)["created"] for content in told)


def test_what_happened_on_several_days_is_found_on_each(client: StdioClient) -> None:
    days = [f"2026-03-0{n}" for n in range(1, 6)]
    ids = {day: remember(client, "Ran five kilometres", kind="event", at=f"{day}T07:00:00Z")["id"] for day in days}
    assert len(set(ids.values())) == 5
    for day, id in ids.items():
        (hit,) = hits(client, "ran kilometres", kind="event", since=day, until=day)
        assert (hit["id"], hit["at"]) == (id, f"{day}T07:00Z")
        # At another hour of the same day in UTC it is the same statement.
        evening = remember(client, "Ran five kilometres", at=f"{day}T23:30:00Z")
        assert (evening["id"], evening["duplicate"]) == (id, True)
    assert texts(client, "ran kilometres") == ["Ran five kilometres"]
    undated = remember(client, "Ran five kilometres")
    assert (undated["id"], undated["duplicate"]) == (ids[days[-1]], True)


def test_a_statement_that_came_true_again_does_not_hide_what_was_said_between(client: StdioClient) -> None:
    told = {
        at: remember(client, f"We build with {tool}", at=at)
        for at, tool in (("2026-01-10", "Jenkins"), ("2026-05-10", "Drone"), ("2026-11-10", "Jenkins"))
    }
    assert all(receipt["created"] for receipt in told.values())
    for as_of, known in (("2026-02-01", 1), ("2026-06-01", 2), ("2026-08-01", 2)):
        found = {hit["id"] for hit in hits(client, "what do we build with", as_of=as_of)}
        assert found == {receipt["id"] for receipt in list(told.values())[:known]}, as_of


def test_a_forgotten_statement_comes_back_beside_the_same_text_of_another_day(client: StdioClient) -> None:
    first = remember(client, "The boiler failed", at="2026-01-10")["id"]
    second = remember(client, "The boiler failed", at="2026-02-10")["id"]
    client.call("forget", id=first)
    assert not client.call("forget", id=first, undo=True)["isError"]
    for day, id in (("2026-01-10", first), ("2026-02-10", second)):
        assert [hit["id"] for hit in hits(client, "boiler", since=day, until=day)] == [id]


def test_stating_a_plan_again_without_a_date_keeps_its_date(client: StdioClient) -> None:
    remember(client, "The fair opens", at="2093-05-01")
    remember(client, "The fair opens")
    assert hits(client, "fair")[0]["at"] == "2093-05-01T00:00Z"


def test_a_value_brought_in_late_does_not_replace_a_newer_one(client: StdioClient) -> None:
    newer = remember(client, "The rent is 900", key="rent", at="2026-03-01")
    remember(client, "The rent was 700", key="rent", at="2025-01-01")
    assert texts(client, "rent", key="rent") == ["The rent is 900"]
    (then,) = hits(client, "rent", key="rent", as_of="2025-06-01")
    assert (then["content"], then["superseded_by"]) == ("The rent was 700", newer["id"])


def told(client: StdioClient, key: str, *values: tuple[str, str | None]) -> dict[str, list[str]]:
    """Give a key these values in this order, and return what it holds in the middle of some years, and now."""
    for content, at in values:
        remember(client, f"{key} is {content}", key=key, **({"at": at} if at else {}))
    then = {year: texts(client, key, key=key, as_of=f"{year}-06-01") for year in ("2019", "2020", "2021", "2022")}
    then["now"] = texts(client, key, key=key)
    return {when: [text.removeprefix(f"{key} is ") for text in found] for when, found in then.items()}


def test_a_value_that_came_back_holds_twice_in_whatever_order_it_is_told(client: StdioClient) -> None:
    first, between, second = ("Berlin", "2020-01-01"), ("Paris", "2021-01-01"), ("Berlin", "2022-01-01")
    held = {"2019": [], "2020": ["Berlin"], "2021": ["Paris"], "2022": ["Berlin"], "now": ["Berlin"]}
    for n, order in enumerate(itertools.permutations((first, between, second))):
        if order[-1] != between:  # told last, it finds the same value told twice in a row, which is one statement
            assert told(client, f"city.{n}", *order) == held, order


def test_a_value_dated_back_ends_the_one_that_held_then(client: StdioClient) -> None:
    found = told(client, "team", ("red", "2019-01-01"), ("blue", "2022-01-01"), ("blue", "2021-01-01"))
    assert found == {"2019": ["red"], "2020": ["red"], "2021": ["blue"], "2022": ["blue"], "now": ["blue"]}


def test_a_value_without_a_date_gives_way_and_leaves_one_value_to_each_time(client: StdioClient) -> None:
    found = told(client, "size", ("small", "2019-01-01"), ("middle", None), ("large", "2021-01-01"))
    assert found == {"2019": ["small"], "2020": ["small"], "2021": ["large"], "2022": ["large"], "now": ["large"]}


def test_a_value_brought_in_late_still_supersedes_the_memory_it_names(client: StdioClient) -> None:
    remember(client, "The fee is 900", key="fee", at="2026-03-01")
    wrong = remember(client, "The fee was 70")
    late = remember(client, "The fee was 700", key="fee", at="2025-01-01", supersedes=wrong["id"])
    assert late["superseded"] == [wrong["id"]]
    assert texts(client, "fee") == ["The fee is 900"]


def test_the_confidence_of_a_question_in_a_script_the_model_cannot_read_is_that_of_its_words(
    start_stdio: StartStdio,
) -> None:
    client = start_stdio(PERDURE_EMBEDDER__KIND="local")
    client.initialize()
    for content in ("用户喜欢在周末去爬山", "会议改到星期三下午三点", "يسكن أحمد في القاهرة", "Отпуск в июле"):
        assert not client.call("remember", content=content)["isError"]
    settle(client)

    def sure(query: str) -> float:
        found = client.call("recall", query=query)["structuredContent"]
        assert "vectors" in found["channels"]
        return found["confidence"]

    answered = [sure("会议改到什么时候"), sure("أحمد القاهرة"), sure("когда отпуск")]
    unanswered = [sure("他的汽车是什么颜色"), sure("ما لون سيارته"), sure("Какого цвета машина")]
    assert min(answered) > 0.3 > max(unanswered), (answered, unanswered)
