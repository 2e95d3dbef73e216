"""What the values of live state must look like: a JSON Schema for each prefix of keys. Pure, and reads no address."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from perdure.errors import InvalidInput

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError
    from jsonschema.protocols import Validator

Json = Any  # what json.loads gives
Schemas = Mapping[str, Mapping[str, Json]]

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
            validator.check_schema(cast("Any", schema))  # Any: the library's type of a schema is its own
            registry: Registry[Any] = Registry()  # Any: schemas
            resolver = registry.resolver_with_root(DRAFT202012.create_resource(cast("Any", schema)))
            for reference in _references(schema):
                if not reference.startswith("#"):
                    raise InvalidInput(
                        f"{setting}: $ref {reference!r} leads out of the schema, and nothing is fetched. Copy what it"
                        " names to $defs and write #/$defs/NAME."
                    )
                resolver.lookup(reference)
            for sample in SAMPLES:
                validator.is_valid(sample)
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

    error = cast("ValidationError | None", best_match(_validator(schemas[prefix]).iter_errors(value)))
    if error is not None:
        raise InvalidInput(
            f"{key!r} was not set: {_where(error)} {_expected(error)}. Send what the schema of {prefix!r} ([state]"
            " schemas in the settings) allows."
        )


def _validator(schema: Mapping[str, Json]) -> Validator:
    from jsonschema.validators import Draft202012Validator, validator_for
    from referencing import Registry

    kind = validator_for(cast("Any", schema), default=Draft202012Validator)  # Any: as above
    # An empty registry: the default one would fetch what a $ref names.
    return kind(cast("Any", schema), registry=Registry(), format_checker=kind.FORMAT_CHECKER)


def _references(schema: Json) -> list[str]:
    found: list[str] = []
    match schema:
        case dict():
            for name, part in cast("dict[str, Json]", schema).items():
                if name in ("$ref", "$dynamicRef", "$recursiveRef") and isinstance(part, str):
                    found.append(part)
                found += _references(part)
        case list():
            for part in cast("list[Json]", schema):
                found += _references(part)
        case _:
            pass
    return found


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
