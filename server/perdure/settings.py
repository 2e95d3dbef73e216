"""One TOML file and PERDURE_* variables to a frozen Settings; the only reader of the environment."""

from __future__ import annotations

import difflib
import hashlib
import os
import re
import stat
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from perdure.errors import InvalidInput
from perdure.shapes import check_schemas

NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,79}$"
PREFIX = "PERDURE_"
_WINDOWS = re.compile(r"[A-Za-z]:[\\/]|\\\\")  # begins a path with a drive or a host
PASSPHRASE = "PERDURE_PASSPHRASE"  # of a backup; in no settings file, for those stand in backups
SPACE = r"^(?:collection\.)?[A-Za-z0-9][A-Za-z0-9_-]{0,79}$"  # what rows stand under: a namespace, or a collection
NOT_SETTINGS = {"PERDURE_CONFIG", "PERDURE_TOKEN", PASSPHRASE}
"""Says where the file is, so it cannot stand in it; what clients send; what opens a backup."""


def is_name(text: str) -> bool:
    """Return whether `text` can be the name of a namespace or an agent."""
    return re.fullmatch(NAME, text) is not None


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ToolSettings(_Section):
    """Which tools a client sees and how they are called."""

    profile: Literal["standard", "core"] = Field(
        "standard", description="standard shows every tool, core the six a small context can afford"
    )
    prefix: str = Field(
        "",
        pattern=r"^([a-z][a-z0-9_]{0,30})?$",
        description='put before each tool name, like "memory_", when another server uses the same names',
    )


class DatabaseSettings(_Section):
    """Where the truth lies: in a file of the data directory, or in a database of Postgres that servers share."""

    url: str | None = Field(
        None,
        pattern=r"^postgres(ql)?://\S+$",
        repr=False,
        description="a database of Postgres, like postgresql://perdure@db.example.org/perdure; needs the extra"
        " postgres. Without it: perdure.db in data_dir",
    )
    connections: int = Field(20, ge=2, le=500, description="Postgres: the most that one process opens")


class EmbedderSettings(_Section):
    """What turns text into vectors. One that fails never turns into another: recall answers by words, and says so."""

    kind: Literal["local", "multilingual", "openai", "none", "hashing"] = Field(
        "local",
        description="local (bge-small-en-v1.5, no network), multilingual (multilingual-e5-small, no network; needs the "
        "extra of that name), openai (an OpenAI-compatible endpoint), none (words only), hashing (tests only)",
    )
    model: str = Field("text-embedding-3-small", description="openai: the model's name")
    base_url: str | None = Field(None, description="openai: the endpoint, like http://127.0.0.1:11434/v1")
    api_key: str | None = Field(None, repr=False, description="openai: the key; OPENAI_API_KEY is not read")
    dimensions: int | None = Field(None, ge=8, le=8192, description="openai: shortened vectors, for models that can")
    query_prefix: str = Field("", description='openai: put before each query, like "query: " for e5 models')
    document_prefix: str = Field("", description='openai: put before each stored text, like "passage: " for e5 models')
    deadline_s: float = Field(
        0.5,
        gt=0,
        le=60,
        description="seconds remember and recall wait for a vector before they go on without it; recall waits up to "
        "three times as long for a local worker that starts",
    )
    threads: int = Field(1, ge=1, le=16, description="local, multilingual: threads of the model")
    idle_s: float = Field(
        120.0, gt=0, description="local, multilingual: seconds without clients after which the embed worker ends"
    )
    worker_dir: Path | None = Field(
        None,
        description="local, multilingual: where the embed worker has its socket, in place of the data directory; a "
        "directory of this machine alone, where servers of several machines share a data directory",
    )


def _check_address(kind: str, url: str | None) -> None:
    """Raise ValueError unless an index of this kind can have this address; its password is not repeated."""
    if url is None or kind == "none":
        return
    schemes = ("postgresql", "postgres") if kind == "pgvector" else ("http", "https")
    try:
        parts = urlsplit(url)
        known = bool(parts.hostname or (kind == "pgvector" and parts.path)) and parts.port != 0
    except ValueError:
        known, parts = False, urlsplit("")
    if not known or parts.scheme not in schemes:
        raise ValueError(f"the url of {kind} must begin with {schemes[0]}:// and name a host")


class BesideSettings(_Section):
    """A second index that this server may meet: the one that `perdure reindex --to` moves to, or came from."""

    kind: Literal["chroma", "pgvector", "qdrant", "none"] = Field("none", description="as index.kind")
    url: str | None = Field(None, repr=False, description="as index.url")
    token: str | None = Field(None, repr=False, description="as index.token")

    @model_validator(mode="after")
    def _reachable(self) -> Self:
        _check_address(self.kind, self.url)
        return self


class IndexSettings(_Section):
    """How vectors are searched."""

    kind: Literal["chroma", "pgvector", "qdrant", "none"] = Field(
        "chroma",
        description="chroma (a worker process here, or the server at url), pgvector (the Postgres at url), qdrant (the "
        "server at url), none (exact search from SQL only)",
    )
    url: str | None = Field(
        None,
        repr=False,  # it may hold a password in more than one place
        description="where the index is, like http://127.0.0.1:8000, postgresql://user@host/database or "
        "http://127.0.0.1:6333; without one chroma and qdrant lie in the data directory, pgvector in database.url",
    )
    token: str | None = Field(
        None, repr=False, description="what a Chroma server asks for, or the api key of a Qdrant server"
    )
    min_chunks: int = Field(
        2000,
        ge=0,
        description="a namespace gets its collection at this many chunks; the default namespace from its first",
    )
    exact_max_chunks: int = Field(
        2000, ge=0, description="up to this many matching chunks exact search is faster than the index"
    )
    deadline_s: float = Field(
        1.0, gt=0, le=60, description="seconds recall waits for the index before it searches exactly"
    )
    idle_s: float = Field(120.0, gt=0, description="seconds without clients after which the index worker ends")
    audit_s: float = Field(
        3600.0, gt=0, description="seconds between two looks whether a sample of the index is what the database says"
    )
    beside: BesideSettings = BesideSettings()  # pyright: ignore[reportCallIssue] defaults of every field

    @model_validator(mode="after")
    def _reachable(self) -> Self:
        _check_address(self.kind, self.url)
        return self


Algorithm = Literal[
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"
]  # none and HS256 are not among them: with those whoever knows a public key could make tokens


class OAuthSettings(_Section):
    """Whose access tokens open `perdure serve`, beside its own: an OAuth 2.1 resource server (RFC 9728, RFC 9068)."""

    issuer: str | None = Field(
        None, description="the authorization server, letter for letter as iss has it, like https://login.example.org"
    )
    audience: str | None = Field(
        None, description="what aud must hold, letter for letter; most often the address of /mcp as clients know it"
    )
    jwks_url: str | None = Field(None, description="where the issuer publishes its keys")
    resource: str | None = Field(
        None, description="the address of /mcp as clients know it, if the audience is another text"
    )
    algorithms: tuple[Algorithm, ...] = Field(
        ("RS256", "PS256", "ES256", "EdDSA"), min_length=1, description="signatures that are taken"
    )
    namespace_claim: str = Field("sub", min_length=1, description="the claim that decides whose memory it is")
    tenant_claim: str | None = Field(
        None, min_length=1, description="a claim that tells apart what the namespace_claim does not, like org_id"
    )
    agent_claim: str = Field("client_id", min_length=1, description="the claim that history shows as the agent")
    scope_claim: str = Field("scope", min_length=1, description="the claim with the scopes, a text or a list")
    leeway_s: float = Field(
        5.0, ge=0, le=60, description="seconds by which the issuer's clock may be ahead; a token that expired is over"
    )

    @model_validator(mode="after")
    def _whole(self) -> Self:
        named = {"issuer": self.issuer, "audience": self.audience, "jwks_url": self.jwks_url}
        missing = [name for name, value in named.items() if not value]
        if 0 < len(missing) < len(named):
            raise ValueError(f"{' and '.join(missing)} must be set as well")
        if self.issuer is None:
            return self
        for name, value in (("issuer", self.issuer), ("jwks_url", self.jwks_url), ("resource", self.address)):
            if not _is_safe_address(value):
                hint = " (set resource, if the audience is no address)" if name == "resource" else ""
                raise ValueError(
                    f"{name} must be an https address without a password, or an http one of this machine{hint}"
                )
        return self

    @property
    def address(self) -> str | None:
        """The address of /mcp as clients know it."""
        return self.resource or self.audience


class HttpSettings(_Section):
    """Where `perdure serve` listens and whom it answers."""

    host: str = Field("127.0.0.1", description="address to bind; anything but loopback needs a token")
    port: int = Field(8420, ge=0, le=65535, description="port to bind; 0 takes a free one")
    token: str | None = Field(
        None, min_length=16, repr=False, description="bearer token of this namespace; at least 16 characters"
    )
    allowed_hosts: tuple[str, ...] = Field(
        (), description='further Host headers to answer, like "memory.example.org" or "10.0.0.5:*"'
    )
    allowed_origins: tuple[str, ...] = Field((), description='web origins to answer, like "https://app.example.org"')
    metrics: Literal["admin", "open", "off"] = Field(
        "admin",
        description="who may read /metrics: credentials with the scope admin, anybody who reaches the address, nobody",
    )
    grace_s: int = Field(
        5, ge=0, le=600, description="seconds that calls under way may take to end once the server is told to stop"
    )
    oauth: OAuthSettings = OAuthSettings()  # pyright: ignore[reportCallIssue] defaults of every field


class LimitSettings(_Section):
    """What one namespace may take. 0 is no limit."""

    requests_per_minute: int = Field(0, ge=0, description="requests over HTTP that a namespace may send each minute")
    requests_at_once: int = Field(30, ge=1, description="requests that may come at once before that pace is asked for")
    memories: int = Field(0, ge=0, description="memories in force that a namespace may hold")
    bytes: int = Field(
        0, ge=0, description="bytes of memories, turns, state and all versions of files that a namespace may hold"
    )
    daily_tokens: int = Field(
        0, ge=0, description="tokens of the language model that summaries of a namespace may use each day (UTC)"
    )


class CompactionSettings(_Section):
    """When the older turns of a thread are folded into a summary. The turns stay, listed and recalled word for word."""

    after_turns: int = Field(
        30, ge=0, le=10_000, description="turns of a thread beyond its summary above which it is folded; 0 for never"
    )
    keep_turns: int = Field(10, ge=1, le=200, description="the newest turns of a thread, which no summary covers")
    max_chars: int = Field(1600, ge=200, le=20_000, description="the longest summary, in characters")
    writer: Literal["extractive", "model"] = Field(
        "extractive",
        description="extractive (sentences chosen by rules, no model), model (the [language_model] below)",
    )


class LanguageModelSettings(_Section):
    """A model that writes summaries and finds facts, if there is to be one. Nothing is sent anywhere without it."""

    base_url: str | None = Field(None, description="an OpenAI-compatible endpoint, like http://127.0.0.1:11434/v1")
    model: str | None = Field(None, description="the model's name there")
    api_key: str | None = Field(None, repr=False, description="the key; OPENAI_API_KEY is not read")
    deadline_s: float = Field(30.0, gt=0, le=600, description="seconds one answer may take")
    daily_tokens: int = Field(
        50_000, ge=0, description="tokens a day (UTC) that work in the background may use; 0 for none"
    )


class TidySettings(_Section):
    """What keeps a memory small. Everything here is off; what is set is done by `perdure tidy` and once a day."""

    merge_similar: float = Field(
        0.0, ge=0, le=1, description="archive the older of two memories whose cosine is at least this; 0 for never"
    )
    archive_after_days: int = Field(
        0, ge=0, description="days after which a memory is summarised and archived; 0 for never"
    )
    max_memories: int = Field(
        0, ge=0, description="memories a namespace may hold before the least needed are archived; 0 for no limit"
    )


HIDDEN = (
    ".env",
    ".env.*",
    "*.pem",
    "*.key",
    "*.p12",
    "*.pfx",
    "*.jks",
    "*.kdbx",
    "id_rsa*",
    "id_dsa*",
    "id_ecdsa*",
    "id_ed25519*",
    ".netrc",
    ".pgpass",
    ".npmrc",
    ".pypirc",
    ".git-credentials",
    "**/.git/**",
    "**/.ssh/**",
    "**/.gnupg/**",
    "**/.aws/**",
    "**/.azure/**",
    "**/.kube/**",
)


class FilesSettings(_Section):
    """The files of the workspace: where they are, what is hidden, how much there may be, how long versions are kept."""

    store: Literal["directory", "database"] = Field(
        "directory",
        description="directory (plain files in the data directory, which people open) or database (rows of Postgres,"
        " for servers that share no directory; needs database.url)",
    )
    hidden: tuple[str, ...] = Field(
        HIDDEN,
        description="globs of paths that no tool and no command reads, lists, searches or writes, in any case of "
        "letters and with all that is in a folder of such a name; [] for none",
    )
    max_files: int = Field(0, ge=0, description="files a namespace may have; 0 for no limit")
    max_bytes: int = Field(0, ge=0, description="bytes the files of a namespace may take; 0 for no limit")
    keep_versions: int = Field(0, ge=0, description="former versions of a path that are kept; 0 for all")
    keep_days: int = Field(0, ge=0, le=36_500, description="days a version is kept after it was replaced; 0 for ever")
    keep_bytes: int = Field(0, ge=0, description="bytes the former versions of a namespace may take; 0 for no limit")

    @property
    def prunes(self) -> bool:
        """Whether any former version is ever given up."""
        return bool(self.keep_versions or self.keep_days or self.keep_bytes)


class PrivacySettings(_Section):
    """What is kept from the disk. Text in <private> tags always is."""

    mask_credentials: bool = Field(
        True,
        description="mask passwords, keys, tokens and card numbers in memories and turns before they are stored",
    )


class AuditSettings(_Section):
    """Who changed what and when, without what was said."""

    enabled: bool = Field(True, description="note each change in a chain that shows when a row of it is altered")


class StateSettings(_Section):
    """What live state must look like."""

    schemas: dict[str, dict[str, Any]] = Field(
        {}, description="a JSON Schema for the values of all keys that begin with a prefix"
    )

    @field_validator("schemas")
    @classmethod
    def _sound(cls, value: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        check_schemas(value)
        return value


class SeedingSettings(_Section):
    """MEMORY.md, USER.md and the folder memory/ of the workspace, which are read into memories."""

    automatic: bool = Field(
        True, description="read them when a server starts and when they changed; otherwise only `perdure seed` does"
    )


class VolumeSettings(_Section):
    """A directory of this machine that namespaces share as a folder among their files."""

    path: Path = Field(description="the directory, absolute; ~ is the home of the user that runs Perdure")
    mode: Literal["ro", "rw"] = Field("ro", description="ro (read, listed, recalled) or rw (written as well)")
    namespaces: tuple[str, ...] = Field(("*",), min_length=1, description='who has it; "*" is everybody')
    mount: str | None = Field(None, description="the folder it is among the files; shared/NAME if not set")

    @field_validator("path")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        if not (value := value.expanduser()).is_absolute():
            raise ValueError("give an absolute path, like /srv/handbook")
        return value

    @field_validator("namespaces")
    @classmethod
    def _named(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return _namespaces(value)


def _namespaces(value: tuple[str, ...]) -> tuple[str, ...]:
    if wrong := [each for each in value if each != "*" and not re.match(NAME, each)]:
        raise ValueError(f'{wrong[0]!r} is no namespace; give names, or "*" for all')
    return value


class CollectionSettings(_Section):
    """Memories that namespaces share, under keys that begin with shared/NAME/."""

    namespaces: tuple[str, ...] = Field((), description='who recalls them; "*" is everybody')
    writers: tuple[str, ...] = Field((), description='who stores and forgets them as well; "*" is everybody')

    _named = field_validator("namespaces", "writers")(_namespaces)


class TelemetrySettings(_Section):
    """Where timings go, if they are to go anywhere. They hold no word of what was said or stored."""

    endpoint: str | None = Field(
        None,
        pattern=r"^https?://[^\s?#]+$",
        description="an OpenTelemetry collector over HTTP, like http://127.0.0.1:4318; without it the variables of"
        " OpenTelemetry decide",
    )


class Settings(BaseSettings):
    """Everything a person can set. PERDURE_HTTP__PORT=9000 is [http] port = 9000; the environment beats the file."""

    model_config = SettingsConfigDict(
        frozen=True, extra="forbid", env_prefix=PREFIX, env_nested_delimiter="__", env_ignore_empty=True
    )

    data_dir: Path = Field(default_factory=lambda: default_data_dir(), description="where everything is kept")
    namespace: str = Field(
        "default",
        pattern=NAME,
        description="whose memory this is: every row, vector and file belongs to exactly one namespace",
    )
    agent: str = Field(
        "local", pattern=NAME, description="who acts, as history shows it, over stdio and on the command line"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field("warning", description="what goes to stderr")
    log_format: Literal["text", "json"] = Field(
        "text", description="text, or json: one object a line, with the request it belongs to"
    )
    tools: ToolSettings = ToolSettings()  # pyright: ignore[reportCallIssue] defaults of every field
    database: DatabaseSettings = DatabaseSettings()  # pyright: ignore[reportCallIssue]
    embedder: EmbedderSettings = EmbedderSettings()  # pyright: ignore[reportCallIssue]
    index: IndexSettings = IndexSettings()  # pyright: ignore[reportCallIssue]
    http: HttpSettings = HttpSettings()  # pyright: ignore[reportCallIssue]
    compaction: CompactionSettings = CompactionSettings()  # pyright: ignore[reportCallIssue]
    language_model: LanguageModelSettings = LanguageModelSettings()  # pyright: ignore[reportCallIssue]
    tidy: TidySettings = TidySettings()  # pyright: ignore[reportCallIssue]
    files: FilesSettings = FilesSettings()  # pyright: ignore[reportCallIssue]
    privacy: PrivacySettings = PrivacySettings()  # pyright: ignore[reportCallIssue]
    audit: AuditSettings = AuditSettings()  # pyright: ignore[reportCallIssue]
    state: StateSettings = StateSettings()  # pyright: ignore[reportCallIssue]
    seeding: SeedingSettings = SeedingSettings()  # pyright: ignore[reportCallIssue]
    limits: LimitSettings = LimitSettings()  # pyright: ignore[reportCallIssue]
    telemetry: TelemetrySettings = TelemetrySettings()  # pyright: ignore[reportCallIssue]
    volumes: dict[str, VolumeSettings] = Field({}, description="directories of this machine among the files, by name")
    collections: dict[str, CollectionSettings] = Field({}, description="memories that namespaces share, by name")

    @field_validator("volumes", "collections")
    @classmethod
    def _named(cls, value: dict[str, Any]) -> dict[str, Any]:  # Any: the settings of each
        if wrong := [name for name in value if not re.match(NAME, name)]:
            raise ValueError(f"{wrong[0]!r} is no name of a volume or a collection: 1-80 letters, digits, _ and -")
        return value

    @field_validator("data_dir")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        if os.name == "posix" and _WINDOWS.match(str(value)):
            raise ValueError("a path of Windows, which is none here; give one like /mnt/c/memory")
        return value.expanduser().absolute()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        # What is passed in is the file's content, and the environment wins over the file. No .env: clients start
        # servers in the user's project, whose .env is not ours.
        return env_settings, init_settings


class _Final(Settings):
    """Settings that read no environment, so that what the command line says wins over it."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)


def load_settings(config: Path | None = None, **overrides: str | None) -> Settings:
    """Return the settings from `config`, PERDURE_CONFIG or the default file, the environment, then `overrides`.

    Overrides are the command line's (`namespace`, `data_dir`, `agent`); None leaves a setting as it is.
    Raises InvalidInput naming the setting, its value and the nearest known name.
    """
    path = config or (Path(os.environ["PERDURE_CONFIG"]).expanduser() if os.environ.get("PERDURE_CONFIG") else None)
    values = _read_toml(path) if path else {}
    if path is None and (default := default_config_file()) and _is_file(default):
        values = _read_toml(default)
        path = default
    _refuse_unknown(values, Settings, where=str(path))
    _refuse_unknown_variables()
    try:
        settings = _with_index_of_database(Settings(**values))
        given = {name: value for name, value in overrides.items() if value is not None}
        if given:
            final: dict[str, Any] = {**settings.model_dump(), **given}
            settings = _Final(**final)
    except ValidationError as exc:
        raise InvalidInput(_explain(exc)) from exc
    if settings.files.store == "database" and settings.database.url is None:
        raise InvalidInput(
            'The setting files.store = "database" keeps files in Postgres, and there is none. Set database.url, or'
            ' leave files.store at "directory".'
        )
    return settings


def _with_index_of_database(settings: Settings) -> Settings:
    """Return the settings with pgvector in the database of the truth, where no other address of it is named.

    With the truth in Postgres it is also the index that is meant where none is named.
    """
    index, url = settings.index, settings.database.url
    if url is None:
        return settings
    changes: dict[str, Any] = {}
    if "kind" not in index.model_fields_set and index.url is None:
        changes |= {"kind": "pgvector", "url": url}
    elif index.kind == "pgvector" and index.url is None:
        changes["url"] = url
    if index.beside.kind == "pgvector" and index.beside.url is None:
        changes["beside"] = index.beside.model_copy(update={"url": url})
    return settings.model_copy(update={"index": index.model_copy(update=changes)})


def default_data_dir() -> Path:
    """Return the platform's user data directory for Perdure."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "perdure"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "perdure"
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "perdure"


def record_of(data_dir: Path) -> Path | None:
    """Return the file that tells, outside of a data directory, that a store is kept there.

    None for what lies among temporary files, which are expected to go, and where this user has no home.
    """
    temporary = Path(os.environ.get("TMPDIR") or "/tmp")
    if data_dir.is_relative_to(temporary) or data_dir.is_relative_to(temporary.resolve()):
        return None
    try:
        home = Path.home()
    except RuntimeError:
        return None
    name = hashlib.sha256(os.fsencode(data_dir)).hexdigest()[:16]
    if sys.platform == "darwin":
        return home / "Library" / "Application Support" / "perdure-stores" / name
    return Path(os.environ.get("XDG_STATE_HOME") or home / ".local" / "state") / "perdure" / "stores" / name


def default_config_file() -> Path:
    """Return where the settings file is looked for when PERDURE_CONFIG is not set."""
    if sys.platform in ("darwin", "win32"):
        return default_data_dir() / "config.toml"
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "perdure" / "config.toml"


def walk_settings(model: type[BaseModel] = Settings, section: str = "") -> Iterator[tuple[str, str, Any, str]]:
    """Yield (section, name, default, description) of every setting, in order: what docs and tests go by."""
    nested: list[tuple[str, type[BaseModel]]] = []
    for name, info in model.model_fields.items():
        kind = info.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            nested.append((name, kind))
        else:
            yield section, name, info.get_default(call_default_factory=False), info.description or ""
    for name, kind in nested:
        yield from walk_settings(kind, f"{section}.{name}" if section else name)


def variable_of(section: str, name: str) -> str:
    """Return the environment variable of a setting."""
    return PREFIX + "__".join([*section.split("."), name] if section else [name]).upper()


def backup_passphrase() -> str | None:
    """Return the passphrase that encrypts a backup, and opens it again, if the environment has one."""
    return os.environ.get(PASSPHRASE) or None


def traces_endpoint(settings: Settings) -> str | None:
    """Return where spans are sent: an address, "" for what the variables of OpenTelemetry say, None for nowhere."""
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    if settings.telemetry.endpoint is not None:
        return f"{settings.telemetry.endpoint.rstrip('/')}/v1/traces"
    exporter = os.environ.get("OTEL_TRACES_EXPORTER", "").strip()
    if exporter not in ("", "otlp"):
        return None
    named = any(os.environ.get(f"OTEL_EXPORTER_OTLP_{name}") for name in ("ENDPOINT", "TRACES_ENDPOINT"))
    return "" if named or exporter == "otlp" else None


def traces_protocol() -> str:
    """Return the protocol that the variables of OpenTelemetry ask for."""
    names = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
    return next((value for name in names if (value := os.environ.get(name, "").strip())), "http/protobuf")


def _is_safe_address(text: str | None) -> bool:
    try:
        parts = urlsplit(text or "")
        local = parts.hostname in ("localhost", "127.0.0.1", "::1")
        plain = parts.username is None and parts.password is None and not parts.fragment and parts.port != 0
    except ValueError:
        return False
    return plain and bool(parts.hostname) and (parts.scheme == "https" or (parts.scheme == "http" and local))


def _is_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except PermissionError as exc:
        raise InvalidInput(
            f"The settings file {path} cannot be looked for: this user (uid {os.getuid()}) may not enter its folder. "
            "Set HOME to a home of this user, or PERDURE_CONFIG to a file that it can read."
        ) from exc


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as exc:
        raise InvalidInput(f"No settings file at {path}. Correct PERDURE_CONFIG or --config, or remove it.") from exc
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as exc:
        raise InvalidInput(f"The settings file {path} cannot be read: {exc}") from exc


def _refuse_unknown(values: Mapping[str, Any], model: type[BaseModel], *, where: str, section: str = "") -> None:
    for name, value in values.items():
        info = model.model_fields.get(name)
        if info is None:
            full = f"{section}.{name}" if section else name
            raise InvalidInput(f"Unknown setting {full!r} in {where}.{_nearest(name, list(model.model_fields))}")
        kind = info.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel) and isinstance(value, dict):
            _refuse_unknown(value, kind, where=where, section=f"{section}.{name}" if section else name)  # pyright: ignore[reportUnknownArgumentType] TOML keys are strings


def _refuse_unknown_variables() -> None:
    known = {variable_of(section, name) for section, name, _, _ in walk_settings()} | NOT_SETTINGS
    for variable in os.environ:
        if variable.startswith(PREFIX) and variable not in known:
            raise InvalidInput(f"Unknown environment variable {variable}.{_nearest(variable, sorted(known))}")


def _nearest(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f" Did you mean {close[0]!r}?" if close else f" Known: {', '.join(known)}."


def _explain(exc: ValidationError) -> str:
    first = exc.errors()[0]
    name = ".".join(str(part) for part in first["loc"])
    # Of a whole section what is wrong stands in the message, and secrets may stand in the section.
    secret = name.endswith(("token", "api_key", "url")) or isinstance(first["input"], dict)
    shown = "" if secret else f" is {first['input']!r}"
    what = first["msg"].removeprefix("Value error, ")
    return f"The setting {name}{shown}: {what}. config.example.toml describes it."


__all__ = [
    "AuditSettings",
    "BesideSettings",
    "CollectionSettings",
    "CompactionSettings",
    "EmbedderSettings",
    "FilesSettings",
    "HttpSettings",
    "IndexSettings",
    "LanguageModelSettings",
    "LimitSettings",
    "OAuthSettings",
    "PrivacySettings",
    "SeedingSettings",
    "Settings",
    "StateSettings",
    "TelemetrySettings",
    "TidySettings",
    "ToolSettings",
    "VolumeSettings",
    "backup_passphrase",
    "default_config_file",
    "default_data_dir",
    "is_name",
    "load_settings",
    "record_of",
    "traces_endpoint",
    "traces_protocol",
    "variable_of",
    "walk_settings",
]
