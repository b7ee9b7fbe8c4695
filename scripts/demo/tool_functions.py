"""Functions of the tool model's corpus: a handful that it knows by heart, and any number of made-up ones.

A request is about one function.  It says every argument word for word; the schema that it is offered with has other
names and descriptions from one conversation to the next, so that the model has to read them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from scripts.demo.tool_values import Values

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A wish that one call fulfils."""

    family: str
    """Functions of one family do the same."""
    tool: Json
    """Definition of the function, as an API has it."""
    arguments: Json
    text: str
    """A sentence with its mark at the end."""
    follow_up: str
    """The same wish where the one before was of this function, as "And in Bern?"."""
    about: str
    """How an answer names what was asked, as "The weather in Paris"."""
    result: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Slot:
    """One argument: names that a schema may give it, what it is, and how its value is drawn."""

    names: Sequence[str]
    about: str
    draw: Callable[[Values], Any]
    kind: str = "string"
    choices: Sequence[str] = ()
    phrase: str = ""
    """How a request says an optional argument; empty for one that every request has."""


@dataclass(frozen=True, slots=True)
class Family:
    """Functions that do one thing."""

    names: Sequence[str]
    descriptions: Sequence[str]
    slots: Sequence[Slot]
    requests: Sequence[str]
    """Sentences; ``{0}`` is the first slot's value."""
    follow_ups: Sequence[str]
    about: str
    fields: Sequence[tuple[str, Callable[[Values], Any]]]
    """Of its results."""


def _one_of(*words: str) -> Callable[[Values], str]:
    return lambda values: values.random.choice(words)


def _small(values: Values) -> int:
    return values.number(20)


FAMILIES: dict[str, Family] = {
    "weather": Family(
        ("get_weather", "get_weather", "current_weather", "weather", "getWeather", "weather_forecast"),
        ("Weather of a city", "Get the current weather", "Weather for a place"),
        (
            Slot(("city", "city", "location", "place"), "name of the city", Values.city),
            Slot(("unit", "units"), "unit of temperature", _one_of("celsius", "fahrenheit"),
                 choices=("celsius", "fahrenheit"), phrase=" in {}"),
            Slot(("days",), "number of days", _small, "integer", phrase=" for {} days"),
        ),
        ("What is the weather in {0}{1}{2}?", "How is the weather in {0}{1}{2}?", "Tell me the weather in {0}{1}{2}.",
         "What's the weather like in {0}{1}{2}?", "Weather in {0}{1}{2}, please.", "Is it raining in {0}{1}{2}?",
         "Give me the forecast for {0}{1}{2}.", "How warm is it in {0}{1}{2}?"),
        ("And in {0}{1}{2}?", "What about {0}{1}{2}?", "And {0}{1}{2}?"),
        "The weather in {0}",
        (("temperature", lambda v: v.random.randint(-10, 38)),
         ("sky", _one_of("sunny", "cloudy", "rain", "snow", "fog", "wind", "clear")),
         ("humidity", lambda v: v.number(99))),
    ),
    "calculator": Family(
        ("calculate", "calculate", "calculator", "evaluate", "compute", "eval_expression"),
        ("Evaluate an expression", "Calculate a value", "Compute the result of an arithmetic expression"),
        (Slot(("expression", "expression", "formula", "input"), "arithmetic expression", Values.expression),),
        ("What is {0}?", "Calculate {0}.", "How much is {0}?", "Compute {0}, please.", "Please calculate {0}.",
         "What's {0}?", "Tell me what {0} is."),
        ("And {0}?", "What about {0}?"),
        "{0}",
        (("result", lambda v: v.number()),),
    ),
    "search": Family(
        ("search", "search_web", "web_search", "search", "find_pages"),
        ("Search the web", "Find pages on the web", "Search for a text"),
        (
            Slot(("query", "query", "q", "text"), "words to look for", Values.words),
            Slot(("limit", "max_results", "count"), "number of results", _small, "integer",
                 phrase=", at most {} results"),
        ),
        ("Search for {0}{1}.", "Find pages about {0}{1}.", "Look up {0}{1} on the web.", "Search the web for {0}{1}.",
         "Please search for {0}{1}."),
        ("And {0}{1}?", "Now search for {0}{1}."),
        "Found for {0}",
        (("title", Values.title), ("url", lambda v: f"https://{v.word()}.org/{v.word()}")),
    ),
    "calendar": Family(
        ("create_event", "add_event", "create_event", "calendar_add", "schedule_event"),
        ("Add an event to the calendar", "Create a calendar event", "Put an appointment into the calendar"),
        (
            Slot(("title", "title", "name", "summary"), "title of the event", Values.title),
            Slot(("date", "date", "day"), "day, YYYY-MM-DD", Values.date),
            Slot(("time", "start", "start_time"), "time of the day", Values.time, phrase=" at {}"),
        ),
        ("Add {0} to my calendar on {1}{2}.", "Create the event {0} on {1}{2}.", "Schedule {0} for {1}{2}.",
         "Put {0} into my calendar for {1}{2}."),
        ("Also {0} on {1}{2}.", "And {0} on {1}{2}."),
        "The event {0} on {1}",
        (("status", _one_of("created", "added", "saved", "conflict")), ("id", Values.label)),
    ),
    "agenda": Family(
        ("list_events", "get_events", "list_events", "agenda"),
        ("List the events of a day", "What is in the calendar on a day"),
        (Slot(("date", "date", "day"), "day, YYYY-MM-DD", Values.date),),
        ("What is in my calendar on {0}?", "List my events of {0}.", "What do I have on {0}?",
         "Show the events on {0}."),
        ("And on {0}?", "What about {0}?"),
        "Your events on {0}",
        (("events", lambda v: [v.title() for _ in range(v.random.randint(1, 3))]),),
    ),
    "file": Family(
        ("read_file", "read_file", "open_file", "get_file", "readFile", "cat_file"),
        ("Read a file", "Contents of a file", "Return the text of a file"),
        (Slot(("path", "path", "file", "filename"), "path of the file", Values.path),),
        ("Read the file {0}.", "What is in {0}?", "Show me {0}.", "Open {0}.", "What does the file {0} say?",
         "Read {0}, please."),
        ("And {0}?", "Now read {0}."),
        "The file {0}",
        (("content", Values.words),),
    ),
    "mail": Family(
        ("send_email", "send_mail", "send_email", "sendEmail"),
        ("Send an e-mail", "Send a mail to an address"),
        (
            Slot(("to", "to", "recipient", "address"), "address", Values.email),
            Slot(("subject", "subject", "title"), "subject of the mail", Values.title),
        ),
        ("Send a mail to {0} with the subject {1}.", "Mail {0} about {1}.", "Write to {0}, subject {1}."),
        ("And one to {0} about {1}.",),
        "The mail to {0}",
        (("status", _one_of("sent", "queued", "rejected")),),
    ),
    "clock": Family(
        ("get_time", "current_time", "get_time", "time_in"),
        ("Local time of a city", "Get the current time of a place"),
        (Slot(("city", "location", "place"), "name of the city", Values.city),),
        ("What time is it in {0}?", "Tell me the time in {0}.", "How late is it in {0}?"),
        ("And in {0}?", "What about {0}?"),
        "The time in {0}",
        (("time", Values.time),),
    ),
    "currency": Family(
        ("convert_currency", "convert", "exchange", "convert_currency"),
        ("Convert an amount of money", "Exchange between currencies"),
        (
            Slot(("amount", "amount", "value"), "amount of money", Values.number, "number"),
            Slot(("from", "source", "from_currency"), "currency to convert from", Values.currency),
            Slot(("to", "target", "to_currency"), "currency to convert to", Values.currency),
        ),
        ("Convert {0} {1} to {2}.", "How much is {0} {1} in {2}?", "What are {0} {1} in {2}?",
         "Change {0} {1} into {2}."),
        ("And {0} {1} in {2}?",),
        "{0} {1} in {2}",
        (("amount", Values.decimal),),
    ),
    "translation": Family(
        ("translate", "translate_text", "translate"),
        ("Translate a text", "Translate into another language"),
        (
            Slot(("text", "text", "input"), "text to translate", Values.words),
            Slot(("language", "target_language", "to"), "language to translate into", Values.language),
        ),
        ("Translate {0} into {1}.", "How do you say {0} in {1}?", 'Translate "{0}" to {1}.'),
        ("And {0} in {1}?",),
        "{0} in {1}",
        (("text", Values.coined),),
    ),
    "timer": Family(
        ("set_timer", "start_timer", "set_timer"),
        ("Set a timer", "Start a timer"),
        (Slot(("minutes", "minutes", "duration"), "number of minutes", Values.number, "integer"),),
        ("Set a timer for {0} minutes.", "Wake me in {0} minutes.", "Start a timer of {0} minutes."),
        ("And one for {0} minutes.",),
        "The timer of {0} minutes",
        (("status", _one_of("running", "started", "set")),),
    ),
}  # fmt: skip


def request_of(name: str, values: Values, tool: Json | None = None) -> Request:
    """A request of a known family.

    Args:
        name: of the family.
        values: draws everything.
        tool: the definition that an earlier request of the conversation had, to be used once more.
    """
    family, random = FAMILIES[name], values.random
    tool = tool or _definition(family, random)
    properties = list(tool["function"]["parameters"]["properties"].items())
    arguments, said = Json(), list[str]()
    for slot in family.slots:
        found = next(((key, schema) for key, schema in properties if key in slot.names), None)
        if found is None or (slot.phrase and random.random() < 0.5):
            said.append("")
            continue
        value = slot.draw(values)
        arguments[found[0]] = value
        said.append(slot.phrase.format(value) if slot.phrase else str(value))
    arguments = {key: arguments[key] for key, _ in properties if key in arguments}
    result = {key: draw(values) for key, draw in family.fields if random.random() < 0.8}
    return Request(
        family=name, tool=tool, arguments=arguments, text=random.choice(family.requests).format(*said),
        follow_up=random.choice(family.follow_ups).format(*said), about=family.about.format(*said),
        result=result or {"status": "done"},
    )  # fmt: skip


def _definition(family: Family, random: Random) -> Json:
    is_described = random.random() < 0.4
    properties, required = Json(), list[str]()
    for slot in family.slots:
        if slot.phrase and random.random() < 0.5:
            continue
        key = next(n for n in random.sample(slot.names, len(slot.names)) if n not in properties)
        properties[key] = schema_of(slot.kind, slot.about if is_described else "", slot.choices)
        if not slot.phrase:
            required.append(key)
    return definition(random.choice(family.names), random.choice(("", *family.descriptions)), properties, required)


def schema_of(kind: str, about: str, choices: Sequence[str] = ()) -> Json:
    """Schema of one argument."""
    schema: Json = {"type": kind}
    if choices:
        schema["enum"] = list(choices)
    return schema | ({"description": about[0].upper() + about[1:]} if about else {})


def definition(name: str, about: str, properties: Json, required: Sequence[str]) -> Json:
    """A function as an API has it."""
    parameters = {"type": "object", "properties": properties, "required": list(required)}
    return {"type": "function", "function": {"name": name, "description": about, "parameters": parameters}}


def arguments_text(arguments: Json) -> str:
    """Arguments as calls write them."""
    return json.dumps(arguments, ensure_ascii=False)
