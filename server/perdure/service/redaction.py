"""What of a text is kept from the disk: private parts, and credentials where the settings mask them."""

from __future__ import annotations

from collections.abc import Mapping

from perdure import credentials, privacy
from perdure.errors import InvalidInput
from perdure.settings import PrivacySettings

PRIVATE = "text in <private> tags was cut out"


class Redaction:
    """Redacts the texts of one write and notes what it hid. What comes out is all that is hashed, embedded, stored."""

    def __init__(self, settings: PrivacySettings) -> None:
        self._mask = settings.mask_credentials
        self._kinds: dict[str, None] = {}
        self._cut = False

    def of(self, text: str) -> str:
        """Return what may be kept of the text: it may be nothing but `[private]`."""
        text, cut = privacy.without_private(text)
        self._cut |= cut
        if self._mask:
            text, kinds = credentials.masked(text)
            self._kinds |= dict.fromkeys(kinds)
        return text

    def of_statement(self, text: str, name: str) -> str:
        """Return what may be kept of a text that must say something. Raises InvalidInput if nothing is left of it."""
        kept = self.of(text)
        if self._cut and privacy.is_all_private(kept):
            raise InvalidInput(
                f"{name} is all in <private> tags, so there is nothing to keep. Leave it, or send what may be kept"
                " outside of the tags."
            )
        return kept

    def of_values(self, values: Mapping[str, str]) -> dict[str, str]:
        """Return the names with what may be kept of their values."""
        return {name: self.of(value) for name, value in values.items()}

    def note(self, other: str | None) -> str | None:
        """Return what a receipt says of what was hidden, after its other note; None if there is neither."""
        said: list[str] = [other] if other else []
        if self._cut:
            said.append(f"Not stored: {PRIVATE}.")
        if self._kinds:
            said.append(
                f"Masked before it was stored: {', '.join(self._kinds)}. To keep such values, set"
                " privacy.mask_credentials = false."
            )
        return " ".join(said) or None


def seen_in(text: str, data: bytes | None = None) -> str | None:
    """Return what a receipt says of credentials in what is kept as it is, None if there are none.

    `data` is the text in UTF-8, if that was made before.
    """
    if not (kinds := credentials.masked(text, data)[1]):
        return None
    return (
        f"It seems to hold a credential ({', '.join(kinds)}), and is kept as it is: recall may show it to any client."
    )
