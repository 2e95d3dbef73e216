"""What the values of live state must look like: a JSON Schema for each prefix of keys. Pure, and reads no address."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator, Mapping
from typing import TYPE_CHECKING, Any, cast

from perdure.errors import InvalidInput

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError
    from jsonschema.protocols import Validator

Json = Any  # what json.loads gives
Schemas = Mapping[str, Mapping[str, Json]]

LIMIT_S = 1.0  # of processor time for the patterns that one value is matched against: some take longer than years
SHOWN = 200  # characters of a value, or of what was expected, in a refusal
SAMPLES: tuple[Json, ...] = (None, True, 0, "", [], {})  # a schema that refers to itself alone fails with any


def check_schemas(schemas: Schemas) -> None:
    """Raise InvalidInput, naming the setting, for what is no JSON Schema or refers to something outside of itself."""
    for prefix, schema in schemas.items():
        setting = f"The setting state.schemas.{json.dumps(prefix, ensure_ascii=False)}"
        # Imported here, as below: most stores have no schema, and a server has to answer at once.
        from jsonschema.exceptions import SchemaError
        from referencing import Registry
        from referencing.exceptions import Unresolvable
        from referencing.jsonschema import DRAFT202012

        validator = _validator(schema)
        try:
            _check_schema(validator, schema)
            _refuse_unlimited(setting, schema)
            registry: Registry[Any] = Registry()  # Any: schemas
            resolver = registry.resolver_with_root(DRAFT202012.create_resource(cast("Any", schema)))
            for name, reference in _named(schema):
                if name not in ("$ref", "$dynamicRef", "$recursiveRef") or not isinstance(reference, str):
                    continue
                if not reference.startswith("#"):
                    raise InvalidInput(
                        f"{setting}: $ref {reference!r} leads out of the schema, and nothing is fetched. Copy what it"
                        " names to $defs and write #/$defs/NAME."
                    )
                resolver.lookup(reference)
            for sample in SAMPLES:
                _validator(schema).is_valid(sample)
        except _TooLong as exc:
            raise InvalidInput(
                f"{setting}: the pattern {_cut(repr(exc.pattern))} takes too long. Simplify it."
            ) from exc
        except SchemaError as exc:
            where = "".join(f"{part}: " for part in exc.absolute_path)
            raise InvalidInput(f"{setting} is no JSON Schema: {where}{_cut(exc.message)}.") from exc
        except Unresolvable as exc:
            raise InvalidInput(f"{setting}: $ref {exc.ref!r} leads nowhere; #/$defs/NAME names a definition.") from exc
        except RecursionError as exc:
            raise InvalidInput(f"{setting} refers to itself without end. Let $ref stand in a part of it.") from exc


def check(schemas: Schemas, key: str, value: Json) -> None:
    """Raise InvalidInput unless the value is what the longest prefix of its key asks for."""
    prefix = max((each for each in schemas if key.startswith(each)), key=len, default=None)
    if prefix is None:
        return
    from jsonschema.exceptions import best_match  # pyright: ignore[reportUnknownVariableType] its stub is not whole

    try:
        error = cast("ValidationError | None", best_match(_validator(schemas[prefix]).iter_errors(value)))
    except _TooLong as exc:
        raise InvalidInput(
            f"{key!r} was not set: it could not be checked in {LIMIT_S:g} s against the pattern"
            f" {_cut(repr(exc.pattern))}. Send a shorter text, or simplify that pattern in the schema of {prefix!r}"
            " ([state] schemas in the settings)."
        ) from exc
    if error is not None:
        raise InvalidInput(
            f"{key!r} was not set: {_where(error)} {_expected(error)}. Send what the schema of {prefix!r} ([state]"
            " schemas in the settings) allows."
        )


def _validator(schema: Mapping[str, Json]) -> Validator:
    """Return what checks one value, whose time begins now."""
    from jsonschema import validators
    from jsonschema.validators import Draft202012Validator, validator_for
    from referencing import Registry

    kind = validator_for(cast("Any", schema), default=Draft202012Validator)  # Any: the library's type is its own
    limited = cast("Any", validators).extend(kind, _Patterns(kind.VALIDATORS["additionalProperties"]).keywords())
    # For a schema that names its draft the library would take its own class again, which knows no limit.
    schema = {name: part for name, part in schema.items() if name != "$schema"}
    # An empty registry: the default one would fetch what a $ref names.
    none: Registry[Any] = Registry()  # Any: schemas
    return limited(schema, registry=none, format_checker=kind.FORMAT_CHECKER)


class _TooLong(Exception):
    def __init__(self, pattern: str) -> None:
        self.pattern = pattern


class _Patterns:
    """The keywords of JSON Schema that match patterns, in a limited time: the library's own could go on for ever."""

    def __init__(self, additional: Callable[..., Any]) -> None:  # Any: as the library calls its keywords
        self._additional = additional
        self._until = time.thread_time() + LIMIT_S

    def keywords(self) -> dict[str, Callable[..., Any]]:
        return {
            "pattern": self.pattern,
            "patternProperties": self.properties,
            "additionalProperties": self.additional_properties,
        }

    def _matches(self, pattern: str, text: str) -> bool:
        import regex

        left = self._until - time.thread_time()
        if left <= 0:
            raise _TooLong(pattern)
        try:
            # Concurrent: others run meanwhile.
            return regex.search(pattern, text, timeout=left, concurrent=True) is not None
        except TimeoutError as exc:
            raise _TooLong(pattern) from exc
        except regex.error as exc:  # where a $ref leads to what is no part of the schema
            raise InvalidInput(
                f"The pattern {_cut(repr(pattern))} in [state] schemas in the settings is none: {exc}. Correct it."
            ) from exc

    def pattern(self, validator: Any, pattern: str, value: Json, schema: Json) -> Generator[ValidationError]:
        from jsonschema.exceptions import ValidationError

        if isinstance(value, str) and not self._matches(pattern, value):
            yield ValidationError(f"{value!r} does not match {pattern!r}")

    def properties(self, validator: Any, patterns: Json, value: Json, schema: Json) -> Generator[ValidationError]:
        for pattern, part in patterns.items() if isinstance(value, dict) else ():
            for name, each in cast("dict[str, Json]", value).items():
                if self._matches(pattern, name):
                    yield from validator.descend(each, part, path=name, schema_path=pattern)

    def additional_properties(
        self, validator: Any, rule: Json, value: Json, schema: Json
    ) -> Generator[ValidationError]:
        """Hand the library's own what no pattern matches."""
        patterns = schema.get("patternProperties", {})
        if patterns and isinstance(value, dict):
            of_value = cast("dict[str, Json]", value).items()
            value = {name: each for name, each in of_value if not any(self._matches(p, name) for p in patterns)}
            schema = {name: part for name, part in schema.items() if name != "patternProperties"}
        yield from self._additional(validator, rule, value, schema)


def _check_schema(validator: Validator, schema: Mapping[str, Json]) -> None:
    """Raise SchemaError for what is no JSON Schema, or has a pattern that cannot be matched here."""
    import regex
    from jsonschema import FormatChecker

    formats = FormatChecker(())

    @formats.checks("regex", raises=regex.error)
    def compiles(pattern: Json) -> bool:  # pyright: ignore[reportUnusedFunction] the library calls it
        if isinstance(pattern, str):
            regex.compile(pattern)
        return True

    cast("Any", validator).check_schema(schema, format_checker=formats)  # Any: the library's type lacks it


def _refuse_unlimited(setting: str, schema: Mapping[str, Json]) -> None:
    """Raise InvalidInput for what the library would match by itself, without a limit."""
    names = {name for name, _ in _named(schema)}
    if {"patternProperties", "unevaluatedProperties"} <= names:
        raise InvalidInput(
            f"{setting} has patternProperties beside unevaluatedProperties, which cannot be checked in limited time."
            " Use additionalProperties."
        )
    if any(name == "$schema" and isinstance(part, str) for each in schema.values() for name, part in _named(each)):
        raise InvalidInput(f"{setting}: $schema stands in a part of it. Let it stand at the top only.")


def _named(schema: Json) -> Generator[tuple[str, Json]]:
    """Yield what stands under a name anywhere in it, with the name."""
    match schema:
        case dict():
            for name, part in cast("dict[str, Json]", schema).items():
                yield name, part
                yield from _named(part)
        case list():
            for part in cast("list[Json]", schema):
                yield from _named(part)
        case _:
            pass


def _where(error: ValidationError) -> str:
    """Return which part of the value is wrong, like value.steps[0].name."""
    steps = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.absolute_path)
    return _cut("value" + "".join(steps))


def _expected(error: ValidationError) -> str:
    """Return what is wrong with it: the library's words, which begin with the value, or its rule if that is long."""
    if len(error.message) <= 2 * SHOWN:
        return f"does not fit: {error.message}"
    rule = json.dumps({str(error.validator): error.validator_value}, ensure_ascii=False)
    return f"is {_cut(json.dumps(error.instance, ensure_ascii=False))}, which does not fit {_cut(rule)}"


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
