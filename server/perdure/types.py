"""What the parts hand to each other: callers, receipts, hits, and the limits of each argument. No I/O."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from perdure.errors import Refused

MemoryKind = Literal["fact", "preference", "decision", "procedure", "event", "note"]
Source = Literal["user", "agent", "tool", "web"]
HitType = Literal["memory", "turn", "file"]
WriteMode = Literal["write", "create", "append"]

MEMORY_KINDS: tuple[MemoryKind, ...] = ("fact", "preference", "decision", "procedure", "event", "note")
SOURCES: tuple[Source, ...] = ("user", "agent", "tool", "web")
HIT_TYPES: tuple[HitType, ...] = ("memory", "turn", "file")

# Limits. Sizes are characters unless the name says bytes.
MAX_CONTENT = 65_536  # a memory; longer text belongs into a file
MAX_TURN = 524_288  # what was said is kept as it was, logs and all that people paste
MAX_QUERY = 4_096
MAX_KEY = 200
MAX_THREAD = 200
MAX_TAGS = 32
MAX_TAG = 128
MAX_METADATA = 16_384  # names and values together
MAX_TURNS = 200  # of one append_history
MAX_RESULT = 40_000  # hard cap of any max_chars
MAX_LIMIT = 100
MAX_STATE_VALUE = 32_768  # characters of JSON; one answer shows it whole
MAX_STATE_DEPTH = 64
MAX_STATE_VALUES = 1_000  # of one get_state
MAX_PATH_BYTES = 1_024
MAX_FILE_BYTES = 256 * 1024 * 1024
MAX_WRITE_BYTES = 4 * 1024 * 1024
MAX_EDITED_BYTES = 16 * 1024 * 1024  # of a file that edit_file changes
MAX_EDITS = 64  # of one edit_file
MAX_DIFF = 20_000  # characters of a difference that is shown
MAX_SEARCHED_BYTES = 32 * 1024 * 1024  # of a file that list_files looks through
MAX_LISTED = 1_000  # files of one list_files
MAX_IMAGE_BYTES = 3 * 1024 * 1024  # of an image that read_file gives; larger ones are more than clients take
MAX_BINARY_BYTES = 256 * 1024  # of any other file that is no text
MAX_WHOLE_TEXT_BYTES = 1024 * 1024  # of a text that a resource gives whole
MAX_NOTES_BYTES = 1024 * 1024  # of a file that is read into memories
MAX_STATEMENTS = 3_000  # of one such file
MAX_INDEXED_FILE_BYTES = 4 * 1024 * 1024  # larger files are kept and read, but recall does not search them
MAX_DOCUMENT_BYTES = 32 * 1024 * 1024  # the same of documents, whose text is a small part of them
MAX_DOCUMENT_CHARS = 4 * 1024 * 1024  # of the text of one

VOLUME_SPACE = "volume."  # before the name of a volume: what its rows stand under, and no namespace can be called
COLLECTION_SPACE = "collection."  # the same of a collection of memories
EVERY_NAMESPACE = "*"

SCOPES = frozenset({"memory:read", "memory:write", "files:read", "files:write", "history:read", "admin"})


OUTSIDE = "outside"  # the agent of what somebody did to a file by other means: nobody knows who


@dataclass(frozen=True, slots=True)
class Principal:
    """Who is calling, decided once at the edge (identity.py) and passed down as the first argument."""

    namespace: str
    agent: str
    scopes: frozenset[str] = SCOPES
    token: str | None = None
    """The id of the stored token that proved it, if one did; for the audit, and never what decides."""

    def require(self, *scopes: str) -> None:
        """Raise Refused, naming the first that lacks, unless the caller holds all of these scopes."""
        for scope in scopes:
            if scope not in self.scopes:
                raise Refused(f"This credential lacks the scope {scope!r}. Ask the operator for one that has it.")

    def may(self, scope: str) -> bool:
        """Return whether the caller holds `scope`."""
        return scope in self.scopes


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of a text: characters `start` (included) to `end` (excluded)."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Portion:
    """Characters `start` (included) to `end` (excluded) of a text of `total`."""

    start: int
    end: int
    total: int

    def __str__(self) -> str:
        return f"characters {self.start + 1}-{self.end} of {self.total}"


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of a conversation, as a caller hands it in. `at` is ISO 8601 or None for now."""

    role: str
    content: str
    name: str | None = None
    at: str | None = None


@dataclass(frozen=True, slots=True)
class Similar:
    """A stored memory that says nearly the same as a new one; `score` is the cosine of their embeddings."""

    id: str
    content: str
    score: float


@dataclass(frozen=True, slots=True)
class Receipt:
    """The answer of remember: given only after the commit is on disk. `note` says what is odd about a receipt.

    `indexed` is False while the embedding is pending; the memory is found by words at once all the same, unless it had
    `expired` before it was stored.
    """

    id: str
    created: bool
    duplicate: bool = False
    superseded: tuple[str, ...] = ()
    similar: tuple[Similar, ...] = ()
    indexed: bool = False
    expired: bool = False
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Forgotten:
    """The answer of forget. After `recoverable_until` (ISO 8601) an undo is refused."""

    id: str
    forgotten: bool
    recoverable_until: str | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Archived:
    """The answer of archive and unarchive. `unchanged` were so already; `forgotten` are digests that went with it."""

    ids: tuple[str, ...]
    archived: bool
    unchanged: tuple[str, ...] = ()
    forgotten: tuple[str, ...] = ()
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Pinned:
    """The answer of pin and unpin; `changed` is False if it was so already. `note` says why a pin has no effect."""

    id: str
    pinned: bool
    changed: bool
    note: str | None = None


@dataclass(frozen=True, slots=True)
class TidiedMemory:
    """One memory that a tidying archives: by which rule (similar, old, many), why, and the digest that tells it."""

    id: str
    rule: str
    why: str
    content: str
    digest: str | None = None


@dataclass(frozen=True, slots=True)
class PrunedVersion:
    """A version of a file that is given up: by which rule (count, age, bytes) and why."""

    path: str
    version: int
    bytes: int
    sha256: str
    rule: str
    why: str


@dataclass(frozen=True, slots=True)
class Tidied:
    """What a tidying did, or would do; `at` undoes it. `expired` counts what has expired and was left where it is.

    One that goes on with a tidying that was killed takes over its time as `at`; `before` counts what is in the archive
    from that one. `versions` are those of files that it pruned, which nothing brings back; `freed_bytes` is what that
    and the removal of what no version names freed on disk.
    """

    at: str
    dry_run: bool
    archived: tuple[TidiedMemory, ...]
    digests: tuple[str, ...]
    expired: int
    notes: tuple[str, ...] = ()
    before: int = 0
    versions: tuple[PrunedVersion, ...] = ()
    freed_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Appended:
    """The answer of append_history: the sequence numbers given to the turns, both included."""

    thread: str
    first_seq: int
    last_seq: int
    note: str | None = None


@dataclass(frozen=True, slots=True)
class StateValue:
    """What a key of the live state holds, or held: `value` is any JSON, set at `updated_at` (ISO 8601)."""

    key: str
    value: Any  # Any: any JSON
    version: int
    updated_at: str
    deleted: bool = False


@dataclass(frozen=True, slots=True)
class StatePage:
    """Values in order of their keys; `next_cursor` is None on the last page."""

    values: tuple[StateValue, ...]
    next_cursor: str | None = None


@dataclass(frozen=True, slots=True)
class StateReceipt:
    """The answer of set_state: the version that the key has now."""

    key: str
    version: int
    deleted: bool = False
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Asking:
    """How a question is asked: what recall takes besides the question, and its defaults.

    No `include` means memories, history and files; a memory must have all of the `tags`. `since` and `until` bound when
    it was said or happened; `as_of` answers from what was believed then. Times are as the caller wrote them.
    """

    limit: int = 10
    max_chars: int = 8000
    include: Sequence[str] = ()
    tags: Sequence[str] = ()
    kind: str | None = None
    thread: str | None = None
    key: str | None = None
    since: str | None = None
    until: str | None = None
    as_of: str | None = None
    min_score: float | None = None
    explain: bool = False
    cursor: str | None = None


@dataclass(frozen=True, slots=True)
class Hit:
    """One thing recall found. `score` is higher for better; `at` is when it was said or happened (ISO 8601)."""

    type: HitType
    id: str
    content: str
    score: float
    at: str
    source: str | None = None
    author: str | None = None
    key: str | None = None
    kind: str | None = None
    tags: tuple[str, ...] = ()
    thread: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])
    path: str | None = None
    version: int | None = None
    lines: tuple[int, int] | None = None  # first and last line of a file hit, from 1, both included; none of documents
    place: str | None = None  # the headings, definitions, columns or page that the lines of a file hit stand below
    part: Portion | None = None  # of a long text that `content` is, None for the whole
    episode: int | None = None  # that wrote it, as list_history numbers them; not known of a damaged database
    superseded_by: str | None = None
    explain: Mapping[str, float] | None = None
    collection: str | None = None  # in which a memory is shared; None for one of the namespace alone
    agent: str | None = None  # who stored a shared one, from the credential


@dataclass(frozen=True, slots=True)
class PageMark:
    """Where each item of a page stands, so that whoever shows fewer items can still say how to go on.

    `request` is a digest of the namespace and the question: a cursor is of use only for the same one.
    """

    request: str
    positions: tuple[int, ...]  # the position after each item
    held: tuple[int, ...] = ()  # what holds for all pages: of threads, the newest episode of the first
    items: tuple[int, ...] = ()  # of recall: the passages of this page; each later page leaves out all before it

    def after(self, items: int) -> str:
        """Return the cursor that goes on after the first `items` items of the page (1 or more)."""
        numbers = sorted((*self.held, *self.items[:items]))
        steps = [after - before for before, after in zip([0, *numbers], numbers, strict=False)]
        text = json.dumps([self.request, self.positions[items - 1], steps], separators=(",", ":"))
        return base64.urlsafe_b64encode(zlib.compress(text.encode(), 9)).decode()


@dataclass(frozen=True, slots=True)
class Reading:
    """What a question was taken to ask for.

    `asks` is what it means by time: "now", "then" (in the days `first` to `last`), "after" (since `first`), "before"
    (before `value` held), "when" or "any". `terms` are searched as words, `about` is what was embedded; `author` and
    `role` are whose words it means; `floor` is the cosine that counts as unrelated, None without vectors.
    """

    asks: str
    about: str
    terms: tuple[str, ...]
    first: str | None = None
    last: str | None = None
    value: str | None = None
    author: str | None = None
    role: str | None = None
    floor: float | None = None


@dataclass(frozen=True, slots=True)
class Recall:
    """The honest envelope of recall.

    `searched` counts what was in reach by type; `channels` names what ranked it ("words", "vectors"); `pending` counts
    what is stored but not embedded yet; `degraded` says why the answer is weaker than it should be; `confidence` is in
    [0, 1]; `empty_reason` is nothing_stored, all_archived, filtered_out, no_match (no word in common, and no vectors),
    below_min_score or index_not_ready when `hits` is empty.
    """

    hits: tuple[Hit, ...]
    searched: Mapping[str, int]
    channels: tuple[str, ...]
    pending: int
    degraded: tuple[str, ...]
    confidence: float
    empty_reason: str | None = None
    next_cursor: str | None = None
    mark: PageMark | None = None  # None on an empty page
    reading: Reading | None = None  # given with explain


@dataclass(frozen=True, slots=True)
class Reason:
    """Why something did not come: a word for programs (`name`), and the same for people."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Place:
    """A rank from 1 of `of`, by all that is in reach. `in_pool` says that it became a candidate by this alone."""

    rank: int
    of: int
    score: float
    in_pool: bool


@dataclass(frozen=True, slots=True)
class Rival:
    """What stands directly before something in an answer; `parts` says what each rule gave it."""

    id: str
    score: float
    content: str
    parts: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Inspection:
    """Why one thing came or did not come for a question.

    `reasons` are what kept it out, none if it came; `notes` what weakens it. `words` and `vectors` are None where they
    do not rank it; `has` are the question's terms that it or its neighbours have. `rank` is that in the answer, of `of`
    candidates, `parts` what each rule added to its value, and `before` stands directly above it. `same` is the id of
    what says the same in its place, `superseded_by` that of its successor.
    """

    id: str
    type: HitType
    content: str
    came: bool
    reasons: tuple[Reason, ...]
    notes: tuple[Reason, ...]
    has: tuple[str, ...]
    lacks: tuple[str, ...]
    pool: int
    words: Place | None
    vectors: Place | None
    rank: int | None
    of: int
    score: float | None
    min_score: float | None
    parts: Mapping[str, float]
    before: Rival | None
    same: str | None
    superseded_by: str | None
    reading: Reading
    confidence: float
    channels: tuple[str, ...]
    degraded: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Measure:
    """How often a statement was among the first hits for a question about it, as shares of `questions`.

    `mrr` is the mean of 1 / rank, 0 for a rank beyond ten.
    """

    questions: int
    hit_at_1: float
    hit_at_5: float
    hit_at_10: float
    mrr: float


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What evaluate measured: by kind of question ("masked", "keywords", "paraphrase", "all") and then by what ranked.

    That is "recall", and "words" and "vectors" each alone, as far as they ranked. `statements` of `eligible` were asked
    for; `left_out` say too little to make a question of; `reworded` is the share of the paraphrases in which a word
    gave way to another; `degraded` is how many answers were weaker than they should be, `degraded_by` why; `limits`
    says what the figures cannot show.
    """

    statements: int
    eligible: int
    left_out: int
    seed: int
    reworded: float
    kinds: Mapping[str, Mapping[str, Measure]]
    p50_ms: float
    p95_ms: float
    degraded: int
    degraded_by: Mapping[str, int]
    pending: int
    limits: str


@dataclass(frozen=True, slots=True)
class Episode:
    """One thing that happened, as list_history shows it. `subject` names what it was about (a memory id, a path)."""

    seq: int
    at: str
    kind: str
    agent: str
    role: str | None = None
    name: str | None = None
    content: str | None = None
    subject: str | None = None
    thread: str | None = None
    collection: str | None = None  # to which it happened, None for the namespace


@dataclass(frozen=True, slots=True)
class Summary:
    """What the turns `first_seq` to `last_seq` of a thread said, in short; they are still there, word for word.

    `turns` is how many they are; `writer` is extractive, model or client; `trust` is that of the least trusted of them.
    """

    first_seq: int
    last_seq: int
    turns: int
    content: str
    writer: str
    trust: Source
    at: str


@dataclass(frozen=True, slots=True)
class Compacted:
    """A summary that was written, or would be: `content` is None in a dry run that would ask a model.

    `tokens` are those a model used, in a dry run about what its questions would take; `note` says what went otherwise.
    """

    thread: str
    first_seq: int
    last_seq: int
    turns: int
    writer: str
    trust: Source
    content: str | None
    tokens: int = 0
    note: str | None = None


@dataclass(frozen=True, slots=True)
class ThreadView:
    """A conversation as a model needs it to go on: its summary, and the turns after it, oldest first.

    `not_shown` counts turns between the two, of which there were too many to show.
    """

    summary: Summary | None
    turns: tuple[Episode, ...]
    not_shown: int = 0


@dataclass(frozen=True, slots=True)
class ContextBlock:
    """What is put before a model call. `items` counts the lines there are, shown or not; 0 when nothing is stored.

    `degraded` says why the text, which says it too, is weaker than it should be.
    """

    text: str
    items: int
    degraded: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Unreflected:
    """Turns of a thread since its summary, oldest first, as a model reads them to tell what is worth keeping.

    `fold` is the first and last turn that a new summary of at most `max_chars` should cover, None where it is not time
    for one; `more` says that further turns follow.
    """

    thread: str
    summary: Summary | None
    turns: tuple[Episode, ...]
    fold: tuple[int, int] | None
    more: bool
    max_chars: int


@dataclass(frozen=True, slots=True)
class Candidate:
    """A statement of a turn that is worth keeping, and the `sentence` it comes from, word for word.

    `seq` is the turn's number, `at` its time (ISO 8601), `source` whose word it is; `id` is the memory's, once stored.
    """

    seq: int
    thread: str | None
    kind: MemoryKind
    content: str
    sentence: str
    speaker: str
    source: Source
    at: str
    key: str | None = None
    tags: tuple[str, ...] = ()
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Extraction:
    """What was found in `turns` turns. `known` were remembered before, now or once; `dropped` are those that a model
    named and that stand in no turn; `tokens` is what it cost."""

    candidates: tuple[Candidate, ...]
    turns: int
    known: int
    dropped: int = 0
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class ThreadInfo:
    """One thread of a namespace: how many episodes it holds and when it began and last moved (ISO 8601)."""

    thread: str
    episodes: int
    first_at: str
    last_at: str


@dataclass(frozen=True, slots=True)
class HistoryPage:
    """One page of history. `threads` is filled instead of `episodes` when kinds is exactly ["thread"]."""

    episodes: tuple[Episode, ...] = ()
    threads: tuple[ThreadInfo, ...] = ()
    next_cursor: str | None = None
    mark: PageMark | None = None  # None on an empty page
    degraded: tuple[str, ...] = ()  # why episodes may be missing


@dataclass(frozen=True, slots=True)
class FileText:
    """Lines of a text file. `first_line`/`last_line` count from 1, both included; both are 0 for an empty file.

    `truncated` says that lines after `last_line` exist. `notes` tells what a reader could not see in the text: a byte
    order mark, CRLF line ends, bytes that are not UTF-8 (shown as U+FFFD). A file that is no text has no lines:
    `binary` is all of it, and `mime_type` what it seems to be.
    """

    path: str
    version: int
    bytes: int
    text: str
    first_line: int
    last_line: int
    total_lines: int
    truncated: bool
    notes: tuple[str, ...] = ()
    binary: bytes | None = None
    mime_type: str = "text/plain"


@dataclass(frozen=True, slots=True)
class Edit:
    """One replacement: `old` occurs exactly once."""

    old: str
    new: str


@dataclass(frozen=True, slots=True)
class FileReceipt:
    """The answer of write_file: `version` counts from 1 per path, `bytes` is the size of the whole file now."""

    path: str
    version: int
    bytes: int
    created: bool
    note: str | None = None


@dataclass(frozen=True, slots=True)
class FileEdited:
    """The answer of edit_file: the version the file has now, or would have; `diff` is unified."""

    path: str
    version: int
    diff: str
    dry_run: bool = False
    note: str | None = None


@dataclass(frozen=True, slots=True)
class FileDeleted:
    """The answer of delete_file: `version` is the last one of `path`, which stays readable.

    Of a file that moved, `path` is where it is now, `version` the one it has there and `moved_from` where it was.
    """

    path: str
    version: int
    moved_from: str | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One file of a workspace. `modified` is ISO 8601.

    `lines` are those that a search found in it, as number and text; `more_lines` says that there are others.
    """

    path: str
    bytes: int
    version: int
    modified: str
    lines: tuple[tuple[int, str], ...] = ()
    more_lines: bool = False


@dataclass(frozen=True, slots=True)
class FilePage:
    """Files by path; `next_cursor` is the path to go on after, None on the last page.

    `notes` say what was passed over: in a listing links and such, in a search also what is no text or too large.
    """

    files: tuple[FileInfo, ...]
    next_cursor: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FileEvent:
    """What happened to a file at one time: `version` is the one it made, or the last one before a deletion.

    `pruned_at` is when the bytes of that version were given up.
    """

    version: int
    at: str
    kind: str
    agent: str
    bytes: int | None
    what: str | None
    pruned_at: str | None = None


@dataclass(frozen=True, slots=True)
class Exported:
    """What an export wrote: lines by type. `problems` could not be exported whole, `left_out` is what is never read."""

    lines: Mapping[str, int]
    problems: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import did: lines by type that were added, and that were here already.

    `kept` are those of the latter that have changed here, or there, since: what is here was left as it is.
    """

    added: Mapping[str, int]
    present: Mapping[str, int]
    kept: tuple[str, ...] = ()


ARCHIVED = "archived"  # why a line differs


@dataclass(frozen=True, slots=True)
class Differs:
    """A line of a file whose memory was changed since, though the line was not: neither is taken to be right."""

    line: int
    id: str
    why: str


@dataclass(frozen=True, slots=True)
class SeededFile:
    """What reading one file of notes, or writing it back, did; counts are of statements.

    `moved` came from another file, `back` are those that were forgotten and are there again. `left_out` are parts that
    became no memory, each with its line and the reason; `masked` are lines with a credential that their memory does not
    hold; `problem` says why nothing was done. `read_at` is when the file was read as it is, if that was before.
    `diff` is what writing back changed in the file, or would change.
    """

    file: str
    added: int = 0
    moved: int = 0
    back: int = 0
    superseded: int = 0
    forgotten: int = 0
    unchanged: int = 0
    differs: tuple[Differs, ...] = ()
    left_out: tuple[str, ...] = ()
    masked: tuple[int, ...] = ()
    problem: str | None = None
    read_at: str | None = None
    diff: str | None = None


@dataclass(frozen=True, slots=True)
class Seeded:
    """The answer of seed: one for each file. `dry_run` says that nothing was changed."""

    files: tuple[SeededFile, ...]
    dry_run: bool = False
