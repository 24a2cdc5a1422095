"""The receiver `slack`: one message for each investigation, changed in place, and the rest in its thread.

Texts from outside are `plain_text` objects, in which Slack reads neither mentions nor links nor Markdown; where a text
has to be mrkdwn, `&`, `<` and `>` are escaped. Each message carries the id of its investigation as metadata, by which
one is found that was posted by a process that died before it noted that, where the bot may read the channel's history.

No SDK is used: its client follows redirects and reads answers of any length.

Sources: Slack API methods chat.postMessage, chat.update, conversations.history, conversations.replies; "Formatting text
for app surfaces", "Escaping text"; "Message metadata"; "Rate limits" (a message a second and channel). The limit of all
texts of a message together is not documented: slackapi/bolt-js, issue 2509.
"""

from __future__ import annotations

import json
import re
import urllib.parse
from collections.abc import Mapping
from typing import Any

from tarsy.config.model import deliveries
from tarsy.deliveries import messages, requests, secrets

SECTION_MAX = 3000
"""Characters of a section's text."""
SECTIONS_MAX = 4
"""Sections of a reply: Slack refuses a message whose texts have about 13,000 characters together."""
LINES_MAX = 40
HISTORY_MAX = 50
"""The messages of a channel among which one is looked for."""
HISTORY_BYTES_MAX = 2 * 1024 * 1024
PACE_SECONDS = 1.0
"""The time from an answer to the next call that writes into the same channel with the same token."""
LATER_SECONDS = 30.0
EVENT_TYPE = "tarsy_investigation"
BUDGET_TYPE = "tarsy_budget"
_OF_MESSAGE = frozenset(
    {
        *("msg_too_long", "msg_blocks_too_long", "invalid_blocks", "invalid_blocks_format", "no_text"),
        *("too_many_attachments", "metadata_too_large"),
    }
)
"""The errors that refuse this message, while others may be taken."""
_GONE = frozenset({"message_not_found", "cant_update_message", "edit_window_closed", "thread_not_found"})
"""The errors of a message that cannot be changed: another one is posted."""
_UNREADABLE = frozenset({400, 403, 404, 405, 410, 501})
"""The statuses of a server on Slack's protocol that has no history, or does not show it."""
_ERROR = re.compile(r"[a-z_]{1,60}")
_TS = re.compile(r"[0-9]{1,20}\.[0-9]{1,20}")


class _SlackError(requests.UndeliveredError):
    """An answer that is not ok; `code` is Slack's."""

    def __init__(self, method: str, code: str) -> None:
        after = LATER_SECONDS if code in ("ratelimited", "rate_limited") else 0.0
        super().__init__(f"{method} answers {code}", after=after, of_message=code in _OF_MESSAGE)
        self.code = code


async def send(
    settings: deliveries.Slack, message: messages.Message | messages.BudgetMessage, attempt: requests.Attempt
) -> Mapping[str, Any]:
    """Post or change the message, and post the rest in its thread; of a budget, post one. Raises UndeliveredError."""
    calls = _Calls(settings, attempt, secrets.read(settings, "token", attempt.environment))
    if isinstance(message, messages.BudgetMessage):
        return await _send_of_budget(settings, message, attempt, calls)
    sent_as = attempt.sent_as
    first = first_message(message, settings.channel)
    ts = str(sent_as.get("ts", ""))
    if not ts and attempt.may_be_sent:
        ts = await calls.find("conversations.history", {}, first["metadata"])
    if ts:
        try:
            await calls.call("chat.update", {**first, "ts": ts})
        except _SlackError as error:
            if error.code not in _GONE:
                raise
            ts = ""
    if not ts:
        ts = await calls.post(first)
    notes = dict(sent_as) if ts == sent_as.get("ts") else {"ts": ts, "stages": 0, "rest": False}
    reply = _reply(settings, message, notes)
    if reply is not None:
        await attempt.keep(notes)
        if not attempt.may_be_sent or not await calls.find("conversations.replies", {"ts": ts}, reply["metadata"]):
            await calls.post(reply)
        notes |= {"stages": len(ended_stages(message)), "rest": message.investigation.ended_at is not None}
    return notes


async def _send_of_budget(
    settings: deliveries.Slack, message: messages.BudgetMessage, attempt: requests.Attempt, calls: _Calls
) -> Mapping[str, Any]:
    metadata = {"event_type": BUDGET_TYPE, "event_payload": {"id": message.id, "receiver": message.receiver}}
    if attempt.may_be_sent and await calls.find("conversations.history", {}, metadata):
        return {}
    await calls.post(
        {
            "channel": settings.channel,
            "text": escape(message.title),
            "blocks": [_section(message.title), _section(message.text)],
            "metadata": metadata,
            "unfurl_links": False,
            "unfurl_media": False,
            "link_names": False,
        }
    )
    return {}


def _reply(settings: deliveries.Slack, message: messages.Message, notes: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the reply that is due in the thread, if any; `notes` tell of the replies before."""
    told_stages = int(notes.get("stages", 0))
    if notes.get("rest"):
        return None
    if message.investigation.ended_at is not None and message.event != "started":
        return rest(message, notes["ts"], settings.channel, told_stages=told_stages)
    stages = ended_stages(message)
    if len(stages) <= told_stages or "updated" not in settings.events:
        return None
    lines = "\n".join(_stage_line(stage) for stage in stages[told_stages:][:LINES_MAX])
    return _in_thread(message, lines, f"stages-{len(stages)}", ts=notes["ts"], channel=settings.channel)


def ended_stages(message: messages.Message) -> list[messages.Stage]:
    """Return the stages that have ended, in the order of the chain."""
    return [stage for stage in message.investigation.stages if stage.phase not in ("Pending", "Running")]


def _stage_line(stage: messages.Stage) -> str:
    return f"{stage.name}: {stage.phase}{f' ({stage.message})' if stage.message else ''}"


def escape(text: str) -> str:
    """Return `text` as mrkdwn that has no mention and no link."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def first_message(message: messages.Message, channel: str) -> dict[str, Any]:
    """Return the message whose blocks are title, text and links; its own text is what a phone's lock screen shows."""
    lines = messages.lines_without_links(message)
    links = message.investigation.links
    named = (("Investigation", links.page), ("Runbook", links.runbook), ("Alert", links.generator))
    # Quoted, a URL cannot end its link.
    quoted = ((name, urllib.parse.quote(url, safe="%/:?#[]@!$&'()*+,;=~-._")) for name, url in named if url)
    linked = " · ".join(f"<{escape(url)}|{name}>" for name, url in quoted)
    blocks = [_section(message.title), *([_section("\n".join(lines))] if lines else [])]
    if linked:
        blocks.append({"type": "context", "elements": [{"type": "mrkdwn", "text": linked, "verbatim": True}]})
    return {
        "channel": channel,
        "text": escape("\n".join([message.title, *lines[:1]])),
        "blocks": blocks,
        "metadata": _metadata(message, "first"),
        "unfurl_links": False,
        "unfurl_media": False,
        "link_names": False,
    }


def rest(message: messages.Message, ts: str, channel: str, *, told_stages: int = 0) -> dict[str, Any]:
    """Return the last reply in the thread: the stages after the first `told_stages`, the gaps, the analysis."""
    about = message.investigation
    stages = [_stage_line(stage) for stage in about.stages[told_stages:]]
    gaps = [f"Not inspected: {gap.tool} ({gap.reason})" for gap in about.gaps]
    lines = "\n".join([*stages[:LINES_MAX], *gaps[:LINES_MAX]])
    text = "\n\n".join(filter(None, (lines, about.final_analysis or about.summary or about.message))) or about.phase
    return _in_thread(message, text, "rest", ts=ts, channel=channel)


def _in_thread(message: messages.Message, text: str, part: str, *, ts: str, channel: str) -> dict[str, Any]:
    """Return the reply that is called `part` of the message."""
    about = message.investigation
    sections = [text[at : at + SECTION_MAX] for at in range(0, len(text), SECTION_MAX)][:SECTIONS_MAX]
    return {
        "channel": channel,
        "thread_ts": ts,
        "text": escape(f"{about.phase}: {message.title}"),
        "blocks": [_section(section) for section in sections],
        "metadata": _metadata(message, part),
        "unfurl_links": False,
        "unfurl_media": False,
        "link_names": False,
    }


def _metadata(message: messages.Message, part: str) -> dict[str, Any]:
    """Return the metadata by which the part of this receiver's message is found."""
    payload = {"id": str(message.investigation.id), "receiver": message.receiver, "part": part}
    return {"event_type": EVENT_TYPE, "event_payload": payload}


def _section(text: str) -> dict[str, Any]:
    excerpt = text[:SECTION_MAX] if text.strip() else "-"
    return {"type": "section", "text": {"type": "plain_text", "text": excerpt, "emoji": False}}


class _Calls:
    """Calls of Slack's API for one receiver."""

    def __init__(self, settings: deliveries.Slack, attempt: requests.Attempt, token: str) -> None:
        self._settings = settings
        self._client = attempt.client
        self._paces = attempt.paces
        self._place = (settings.base_url, settings.channel, token)
        self._headers = {"Authorization": f"Bearer {token}"}

    async def call(self, method: str, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send a message, PACE_SECONDS after the one before, and return the answer. Raises UndeliveredError."""
        url = f"{self._settings.base_url}/{method}"
        headers = {**self._headers, "Content-Type": "application/json; charset=utf-8"}
        body = json.dumps(values).encode()
        async with self._paces.one_at_a_time(self._place, seconds=PACE_SECONDS):
            return self._answer(method, await self._client.send("POST", url, headers=headers, body=body))

    async def post(self, values: Mapping[str, Any]) -> str:
        """Post a message, and return its `ts`. Raises UndeliveredError."""
        ts = str((await self.call("chat.postMessage", values)).get("ts", ""))
        if not _TS.fullmatch(ts):
            raise requests.UndeliveredError("chat.postMessage answers without the ts of a message")
        return ts

    async def find(self, method: str, values: Mapping[str, str], metadata: Mapping[str, Any]) -> str:
        """Return the `ts` of the message with `metadata`.

        Return "" if there is none, if the bot may not look, or if the history cannot be read: then a message may be
        posted twice, and is not lost. Raises UndeliveredError if Slack is away or limits the rate.
        """
        query = {
            **values,
            "channel": self._settings.channel,
            "include_all_metadata": "true",
            "limit": str(HISTORY_MAX),
        }
        url = f"{self._settings.base_url}/{method}?{urllib.parse.urlencode(query)}"
        try:
            received = await self._client.send("GET", url, headers=self._headers, answer_max=HISTORY_BYTES_MAX)
        except requests.UndeliveredError as error:
            if error.status in _UNREADABLE:
                return ""
            raise
        try:
            answer = self._answer(method, received)
        except requests.UndeliveredError as error:
            if error.after:
                raise
            return ""
        posts = answer.get("messages")
        for posted in posts if isinstance(posts, list) else ():
            ts = str(posted.get("ts", "")) if isinstance(posted, dict) and posted.get("metadata") == metadata else ""
            if _TS.fullmatch(ts):
                return ts
        return ""

    def _answer(self, method: str, answer: requests.Answer) -> Mapping[str, Any]:
        try:
            document = json.loads(answer.body)
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict):
            raise requests.UndeliveredError(f"{method} answers no JSON object")
        if document.get("ok") is not True:
            code = str(document.get("error", ""))
            raise _SlackError(method, code if _ERROR.fullmatch(code) else "an error without a name")
        return document
