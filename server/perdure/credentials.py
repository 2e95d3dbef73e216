"""Passwords, keys, tokens and card numbers in a text: found by their shape, and masked. Pure.

Precise rather than complete: what only might be a credential, like a hash or an id, is left as it is.
"""

from __future__ import annotations

import re
from typing import Any, cast

import re2  # pyright: ignore[reportMissingTypeStubs]

# What a token begins with, a space, and how it goes on, by its kind; the whole is masked.
_TOKENS = {
    "private key": (r"AGE-SECRET-KEY-1 [0-9A-Z]{40,}",),
    "cloud key": (
        r"(?:AKIA|ASIA|ABIA|ACCA) [0-9A-Z]{16}\b",
        r"AIza [\w-]{35}(?![\w-])",
        r"ya29\. [\w-]{20,}",
        r"GOCSPX- [\w-]{20,}",
        r"dop_v1_ [0-9a-f]{64}",
        r"dapi [0-9a-f]{32}",
    ),
    "forge token": (
        r"gh[pousr]_ [A-Za-z0-9]{36,}",
        r"github_pat_ \w{40,}",
        r"gl(?:pat|dt|rt)- [\w-]{20,}",
        r"npm_ [A-Za-z0-9]{36}",
        r"pypi- [\w-]{50,}",
        r"ATATT3 [\w=-]{40,}",
        r"ATBB [A-Za-z0-9]{28,}",
    ),
    "chat token": (
        r"xox[abeoprs]- [\w-]{10,}",
        r"xapp- \d-[\w-]{20,}",
        r"[MNO][A-Za-z0-9_-]{23,27}\. [\w-]{6}\.[\w-]{27,}",
        r"(?:bot)?[0-9]{8,10}:AA [\w-]{33}(?![\w-])",
    ),
    "payment key": (r"[sr]k_(?:live|test)_ [0-9A-Za-z]{16,}", r"whsec_ [\w+/=]{24,}", r"sq0[a-z]{3}- [\w-]{22,}"),
    "API key": (
        r"perdure_ [\w-]{43}(?![\w-])",
        r"sk- (?=[\w-]*\d)[A-Za-z0-9_-]{20,}",
        r"hf_ [A-Za-z]{30,}",
        r"gsk_ [A-Za-z0-9]{40,}",
        r"lin_api_ \w{30,}",
        r"shp(?:at|ca|pa|ss)_ [0-9a-f]{32}",
        r"SG\. [\w-]{16,32}\.[\w-]{16,64}",
        r"key- [0-9a-f]{32}",
        r"SK [0-9a-f]{32}",
        r"hv[sb]\. [\w-]{24,}",
    ),
    "token": (r"eyJ [\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]{10,}",),
}
# What tells a credential that begins with nothing of its own; group 1 is masked.
_PLACES = (
    (
        "private key",
        r"(-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----(?:(?!-----).)+(?:-----END [A-Z0-9 ]+-----)?)",
    ),
    ("cloud key", r"(?:AccountKey|SharedAccessKey|sig)=([A-Za-z0-9+/%]{40,}={0,2})"),
    ("chat token", r"https://hooks\.slack\.com/services/(T\w+/B\w+/\w{16,})"),
    ("chat token", r"https://(?:\w+\.)?discord(?:app)?\.com/api/webhooks/(\d+/[\w-]{40,})"),
    ("token", r"(?i)\bbearer\s{1,4}(?=[\w.~+/-]*\d)(?=[\w.~+/-]*[a-z])([\w.~+/-]{16,}={0,2})"),
    ("password", r"(?i)\bauthorization[\"']?\s?[:=]\s?[\"']?basic\s{1,4}([A-Za-z0-9+/]{8,}={0,2})"),
    ("password", r"(?i)\b[a-z][a-z0-9+.-]{1,30}://[^\s/:@'\"<>]{0,100}:([^\s/@'\"<>]{3,200})@"),
)
_PATTERNS = [(kind, re.compile(pattern, re.S)) for kind, pattern in _PLACES]
_KINDS = tuple(_TOKENS)
_FORMS = {kind: "|".join(forms).replace(" ", "") for kind, forms in _TOKENS.items()}
# No token is a part of a longer one. One group for each kind, in their order.
_TOKEN = re.compile(rf"(?<![\w-])(?:{'|'.join(f'({forms})' for forms in _FORMS.values())})")
_NAMES = (
    r"pass(?:word|wd|phrase)|pwd|secret|(?:api|access|account|secret|private|auth|signing|encryption)[_ -]?key"
    r"|(?:auth|access|refresh|bearer|api|secret|session)?[_-]?token|client[_-]?secret|credentials?"
)
# The sign is looked for first and the name before it: names are long to look for at every letter.
_ASSIGNED = re.compile(r"(?::=|=>|[=:])(?=\s{0,3}([\"'`]?)((?:[^\s\"'`,;&<>]|&(?!\w+=)){6,300}))")
_NAME = re.compile(rf"({_NAMES})[\"']?\s{{0,3}}\Z", re.I)
_NAME_CHARS = 24  # the longest name, a quote and the space before the sign
_CARD = re.compile(r"(?<![\w.,/-])\d(?:[ -]?\d){12,18}(?![\w-]|\.\d)")
_ANY_I = r"[i\x{130}\x{131}]"  # what re takes for an i whatever its case, and RE2 does not
# What is in every text that holds one of these. RE2 looks for it in a fiftieth of the time that all of them take.
_PERHAPS = cast("Any", re2).compile(  # Any: the module has no types
    "|".join(
        (
            rf"\b(?:{'|'.join(form.split()[0] for forms in _TOKENS.values() for form in forms)})",
            r"-----BEGIN |(?:AccountKey|SharedAccessKey|sig)=|hooks\.slack\.com/services/T|/api/webhooks/",
            r"(?i:\b(?:bearer|author))|://[^\s/@]*@",
            rf"(?i:{_NAMES.replace('i', _ANY_I)})[\"']?[\s\pZ\pC]{{0,3}}[:=]",
            r"\p{Nd}(?:[ -]?\p{Nd}){12}",
        )
    )
)
_CARD_NUMBER = re.compile(
    r"4(?:\d{12}|\d{15}|\d{18})|(?:5[1-5]|2[2-7])\d{14}|3[47]\d{13}|(?:6011|65\d\d|64[4-9]\d)\d{12}|3(?:0[0-5]|[68]\d)\d{11}"
    r"|35\d{14}"
)
# Not a value but where it comes from, what stands for it, or its type.
_NO_VALUE = re.compile(
    r"[(\[{$%]|\*{3}|\.{3}|…|x{4,}|^[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+$|^[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+[.;)]*$|^/|://"
    r"|^(?:your|my|the|some|an?)[-_ ]|example|placeholder|changeme|change-me|redacted|dummy",
    re.I,
)
_PLAIN_WORDS = re.compile(
    r"(?:password|passwort|secret|token|required|optional|string|number|boolean|true|false|none|null|undefined|unset|empty"
    r"|missing|invalid|expired|hidden|masked|protected)\W*",
    re.I,
)


def masked(text: str, data: bytes | None = None) -> tuple[str, tuple[str, ...]]:
    """Return the text with `[masked password]` and the like for each credential, and the kinds of those in order.

    `data` is the text in UTF-8, if that was made before.
    """
    if _PERHAPS.search(text.encode(errors="replace") if data is None else data) is None:
        return text, ()
    found: list[tuple[int, int, str]] = []
    for match in _TOKEN.finditer(text):
        # The keys that documentations show are nobody's.
        if "EXAMPLE" not in match[0]:
            found.append((*match.span(), _KINDS[(match.lastindex or 1) - 1]))
    for kind, pattern in _PATTERNS:
        for match in pattern.finditer(text):
            if kind != "password" or not _stands_for_another(match[1]):
                found.append((*match.span(1), kind))
    done = 0
    for match in _ASSIGNED.finditer(text):
        name = _NAME.search(text[max(0, match.start() - _NAME_CHARS) : match.start()])
        tight = name is not None and match[0] == "=" and match.start(2) - match.end() == len(match[1]) < 2
        if name and match.start() >= done and _is_secret(name[1].lower(), match[1], match[2], tight=tight):
            found.append((*match.span(2), "password" if name[1][0] in "pP" else "key"))
            done = match.end(2)
    found += [(*match.span(), "card number") for match in _CARD.finditer(text) if _is_card(match[0])]
    return _replaced(text, sorted(found, key=lambda each: (each[0], -each[1])))


def _replaced(text: str, found: list[tuple[int, int, str]]) -> tuple[str, tuple[str, ...]]:
    parts: list[str] = []
    kinds: dict[str, None] = {}
    done = 0
    for start, end, kind in found:
        if end <= done:
            continue
        if start >= done:
            parts += [text[done:start], f"[masked {kind}]"]
        kinds[kind] = None
        done = end
    return ("".join(parts) + text[done:] if parts else text), tuple(kinds)


def _stands_for_another(value: str) -> bool:
    return bool(_NO_VALUE.search(value) or _PLAIN_WORDS.fullmatch(value))


def _is_secret(name: str, quote: str, value: str, *, tight: bool) -> bool:
    """Say whether what a name like password or api_key is given is a value that was thought up or drawn at random.

    `tight` is a value right after a `=`: nobody writes so but a program, and any password will do then.
    """
    value = value.rstrip(".)!?")
    if len(value) < 6 or _stands_for_another(value):
        return False
    is_password = name.startswith(("pass", "pwd"))
    if is_password and tight:
        return True
    mixed = any(char.isdigit() for char in value) and any(char.isalpha() for char in value)
    return mixed and len(value) >= (6 if quote or is_password else 8)


def _is_card(number: str) -> bool:
    digits = re.sub(r"\D", "", number)
    if not _CARD_NUMBER.fullmatch(digits):
        return False
    # ISO/IEC 7812-1, annex B: from the right, every second digit doubled.
    doubled = (int(digit) * (1 + n % 2) for n, digit in enumerate(reversed(digits)))
    return sum(each - 9 if each > 9 else each for each in doubled) % 10 == 0
