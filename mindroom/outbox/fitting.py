"""Pure: makes an answer fit into one event, visibly. Attachments for long texts come with media (E7)."""

from mindroom.core.content import JsonObject

CUT_NOTE = "\n\n[This answer is longer than one message may be; the rest was left out here. Reference {reference}]"


def smaller(content: JsonObject, *, reference: str) -> JsonObject | None:
    """The next smaller form: without HTML, then with half the text and a note that says so; None below one line."""
    if "formatted_body" in content:
        return {key: value for key, value in content.items() if key not in ("formatted_body", "format")}
    note = CUT_NOTE.format(reference=reference)
    body = str(content.get("body", "")).removesuffix(note)
    if len(body) < 256:
        return None
    return {**content, "body": body[: len(body) // 2] + note}
