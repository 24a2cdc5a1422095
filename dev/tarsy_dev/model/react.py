"""The ReAct dialect of the default script: tools read from the prompt, actions and observations in text.

A turn in it is translated into one with tools, calls and results, and the answer to that one back, so that the script
itself knows one dialect. An answer asks for one action; what else it wanted to call it wants again in the next turn.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence

from tarsy_dev.model import script

_TOOLS = re.compile(
    r"^## Tools\n\n<!-- DATA (?P<word>\w+) START -->\n(?P<tools>.*?)\n<!-- DATA (?P=word) END -->",
    re.DOTALL | re.MULTILINE,
)
_TOOL = re.compile(
    r"^(?P<name>[\w-]+\.[\w.:/-]+): (?P<description>.*?)\nArguments \(JSON Schema\): (?P<schema>\{[^\n]*\})$",
    re.DOTALL | re.MULTILINE,
)
_ACTION = re.compile(r"^Action: (?P<name>\S+)\nAction Input: (?P<args>\{.*\})\Z", re.MULTILINE)
_OBSERVATION = re.compile(r"\AObservation: (?P<reference>\[tool [\d.]+\]) (?P<text>.*)\Z", re.DOTALL)
_CONCLUDE = re.compile(r"^[^\n]*\. (?:Ask for no more actions|Call no more tools)\. ", re.MULTILINE)
"""How it is told that it may only conclude, behind the reason."""
_FAILED = re.compile(
    r"failed to|error\b|there is no|the connection to|the arguments of|'[^'\n]+' (was not|did not|gave|refused|is no)",
    re.IGNORECASE,
)
"""How the words of a failed call begin: in this dialect nothing else tells them from a result."""


def is_spoken(model_call: script.Turn) -> bool:
    """Whether a turn is in this dialect."""
    return not model_call.tools and "Final Answer:" in model_call.system


def understood(model_call: script.Turn) -> script.Turn:
    """The turn with tools, calls and results; without tools where it is to conclude."""
    messages: list[script.Message] = []
    for message in model_call.messages:
        asked = messages[-1].calls if messages else ()
        messages.append(_heard(message, asked) if message.role == "user" else _with_call(message))
    concludes = bool(model_call.messages) and _CONCLUDE.search(model_call.messages[-1].text) is not None
    return dataclasses.replace(
        model_call, messages=tuple(messages), tools=() if concludes else _declared(model_call.system)
    )


def spoken(answer: script.Answer) -> script.Answer:
    """An answer with at most one call, in text."""
    if not answer.calls:
        return dataclasses.replace(answer, text=f"Thought: I have what there is to have.\nFinal Answer: {answer.text}")
    call = answer.calls[0]
    action = f"Action: {call.name}\nAction Input: {json.dumps(dict(call.args))}"
    return dataclasses.replace(answer, text=f"Thought: {answer.text}\n{action}", calls=())


def _declared(system: str) -> tuple[script.Tool, ...]:
    described = _TOOLS.search(system)
    matches = _TOOL.finditer(described["tools"]) if described else ()
    return tuple(
        script.Tool(name=tool["name"], description=tool["description"], schema=json.loads(tool["schema"]))
        for tool in matches
    )


def _with_call(message: script.Message) -> script.Message:
    action = _ACTION.search(message.text)
    if action is None:
        return message
    call = script.Call(name=action["name"], args=json.loads(action["args"]))
    return dataclasses.replace(message, calls=(call,))


def _heard(message: script.Message, asked: Sequence[script.Call]) -> script.Message:
    observation = _OBSERVATION.match(message.text) if asked else None
    if observation is None:
        return message
    text, concludes = observation["text"], _CONCLUDE.search(observation["text"])
    text, remainder = (text[: concludes.start()].rstrip(), text[concludes.start() :]) if concludes else (text, "")
    result = script.Result(
        name=asked[0].name, text=text, failed=bool(_FAILED.match(text)), reference=observation["reference"]
    )
    return dataclasses.replace(message, text=remainder.strip(), results=(result,))
