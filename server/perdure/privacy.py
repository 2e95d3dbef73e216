"""What its writer does not want kept: text in <private> tags, and turns that say so. Pure."""

from __future__ import annotations

import re

CUT = "[private]"  # stands where private text stood

_TAG = re.compile(r"<\s{0,8}(/?)\s{0,8}private(?![\w-])[^<>]{0,200}>", re.I)

# A wish, not "I don't remember that": nobody stands before it who does not, and it means what is being said. What is
# not to be stored in some place may well be remembered.
_NOT = r"(?:do\s+not|don['’]?t|never|please\s+not\s+to|(?:you|to)\s+not\s+to|not\s+to)"
_KEEP = r"(?:ever\s+)?(?:remember|memori[sz]e|save|store|record|log|keep|note|write|put)"
_MEMORY = r"\s+(?:in|to|into)\s+(?:your\s+|the\s+|my\s+|long[- ]term\s+)*(?:memory|memories|history|notes|profile)\b"
_ENDS = rf"(?:\s+(?:down|please|anywhere|ok(?:ay)?|but|and|for\s+(?:me|later))\b|{_MEMORY}|\s*(?:$|[^\w\s'’]))"
_THIS = (
    rf"(?:any\s+of\s+)?(?:th(?:is|ese)\b(?!\s+(?:in|on|at|as|under|near|with|next)\b)|(?:that|it|those){_ENDS})",
    rf"this\b{_MEMORY}",
    r"what\s+(?:i|we)(?:['’](?:ve|m|re)|\s+(?:just|have|am|are))*\s+(?:say|said|tell|told|wrote|saying|telling)\b",
    r"(?:anything|a\s+word)\s+(?:i|we|from|about\s+(?:this|that))\b",
    r"(?:my|the)\s+(?:last|next|following)\s+(?:message|part|bit|sentence)",
    rf"(?:\w+\s+){{1,4}}?(?<=\s){_MEMORY.removeprefix(chr(92) + 's+')}",
)
_WISHES = (
    rf"{_NOT}\s+{_KEEP}\s+(?:{'|'.join(_THIS)})",
    r"(?:forget|disregard)\s+(?:that\s+(?:i|we)|what\s+(?:i|we))(?:\s+(?:ever|just))*\s+(?:said|told|mentioned|wrote)\b",
    r"(?:this|that|it)(?:\s+is|['’]s)\s+(?:strictly\s+)?(?:off\s+the\s+record|not\s+for\s+the\s+record)",
    r"off\s+the\s+record\s*[:,–—-]",
    r"(?:this|that|it)\s+(?:should|must|can)\s*(?:not|n['’]t)\s+be\s+(?:remembered|saved|stored|recorded|logged|kept)\b",
)
# German, French, Spanish, Portuguese, Italian, Dutch, Russian, Arabic; then languages that put no space before a word.
_IN_OTHER_WORDS = (
    r"(?:merk|merke|merken\s+sie)\s+(?:dir|sich)\s+(?:das|dies|dieses|es)?\s*(?:bitte\s+)?nicht",
    r"(?:das|dies|bitte)\s+(?:bitte\s+|hier\s+)?nicht\s+(?:merken|speichern|aufschreiben|notieren|behalten)",
    r"(?:speichere?|notiere?)\s+(?:das|dies|es)\s+(?:bitte\s+)?nicht",
    r"(?:ne\s+|n['’])(?:retiens|retenez|mémorise[zr]?|enregistre[zr]?|note[zr]?|sauvegarde[zr]?|garde[zr]?)\s+pas"
    r"\s+(?:ça|cela|ceci)",
    r"no\s+(?:recuerdes|recuerde|guardes|guarde|memorices|memorice|registres|registre|anotes|anote)\s+(?:esto|eso)",
    r"não\s+(?:guarde|guardes|memorize|lembre|grave|registre|anote|salve)\s+(?:isso|isto)",
    r"non\s+(?:memorizzare|memorizzarlo|salvare|ricordare|registrare|annotare)\s+(?:questo|ciò|quello)",
    r"onthoud\s+(?:dit|dat)\s+niet|(?:dit|dat)\s+niet\s+(?:onthouden|opslaan|bewaren)",
    r"не\s+(?:запоминай|запоминайте|сохраняй|сохраняйте|записывай|записывайте)(?:\s+(?:это|этого))?",
    r"لا\s+(?:تتذكر|تحفظ|تسجل)\s+(?:هذا|ذلك|هذه)",
)
_WITHOUT_SPACES = (
    r"(?:不要|别|請勿|请勿|不用)(?:把)?(?:这个|这件事|這個|這件事)?(?:记住|记录|记下|保存|記住|記錄|記下)",
    r"(?:覚えない|記憶しない|記録しない|保存しない)で(?!き|す)",
    r"(?:기억하지|저장하지|기록하지)\s*(?:마|말)",
)
_WISH = re.compile(rf"\b(?:{'|'.join(_WISHES)})", re.I)
_OTHER_WISH = re.compile(rf"\b(?:{'|'.join(_IN_OTHER_WORDS)})|{'|'.join(_WITHOUT_SPACES)}", re.I)
_STATEMENT_OF = re.compile(
    r"\b(?:i|you|we|they|he|she|it|who|people|why)\s+(?:(?:just|really|still|simply|honestly|also|usually)\s+)?\Z", re.I
)


def without_private(text: str) -> tuple[str, bool]:
    """Return the text with `[private]` for each part in <private>...</private>, and whether there was one.

    A tag that is not closed reaches to the end, and tags may stand in each other. Letter case does not matter.
    """
    kept: list[str] = []
    depth, end = 0, 0
    for tag in _TAG.finditer(text):
        opens = not tag[1]
        if depth == 0 and opens:
            kept += [text[end : tag.start()], CUT]
        if depth > 0 or opens:
            depth += 1 if opens else -1
            end = tag.end()
    if not kept:
        return text, False
    return "".join(kept) + ("" if depth else text[end:]), True


def is_all_private(text: str) -> bool:
    """Say whether nothing but `[private]` is left of a text that was cut."""
    return not re.search(r"\w", text.replace(CUT, ""))


def is_off_the_record(text: str) -> bool:
    """Say whether a turn asks not to be remembered: "don't remember this", "off the record: ..." and the like."""
    if _OTHER_WISH.search(text):
        return True
    # Twenty characters or so are looked back: as much as a pronoun and an adverb take.
    return any(
        not _STATEMENT_OF.search(text[max(0, found.start() - 24) : found.start()]) for found in _WISH.finditer(text)
    )
