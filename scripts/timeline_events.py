"""Reads the timeline of a run (penstock.timeline_file)."""

import json


def read_events(text: str) -> list[dict] | dict:
    """Also of a run that goes on or was killed, whose timeline lacks its end, and may have a part of an event."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        try:
            return json.loads(text[:text.rindex("}") + 1] + "]")
        except ValueError:
            raise SystemExit(f"error: this is no timeline: {error}") from None
