"""Made-up functions of the tool model's corpus, so that it reads what it is offered; and talk that needs none."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from scripts.demo.tool_functions import Json, Request, definition, schema_of
from scripts.demo.tool_values import Values

_NOUNS = """price stock status owner address phone_number population capital author year length weight height color size
score rank rating balance salary manager title publisher genre release_date opening_hours menu capacity speed distance
temperature altitude area budget deadline priority progress version license license_plate location position route gate
platform delay duration schedule next_departure attendance result winner coach captain salary_range job department
office birthday age nationality email_address account tracking_number delivery_date discount tax_rate exchange_rate
interest_rate market_value inventory supplier warranty serial_number firmware uptime load memory_usage disk_usage
error_rate latency traffic backup_date certificate expiry_date region zone cluster namespace replica_count image
log_level owner_team incident severity assignee reporter reviewer branch commit build coverage summary abstract
keywords citation_count recipe calories ingredients cooking_time allergens dose side_effects synonyms definition
pronunciation translation_count lyrics album band tempo key_signature""".split()  # noqa: SIM905
_THINGS: dict[str, Callable[[Values], str]] = {
    "product": Values.word, "company": lambda v: v.coined().capitalize(), "country": Values.city,
    "person": Values.person, "employee": Values.person, "song": Values.title, "book": Values.title, "team": Values.city,
    "train": Values.label, "flight": Values.label, "order": Values.label, "user": Values.person,
    "ticket": Values.label, "server": Values.label,
    "street": lambda v: v.coined().capitalize(), "project": Values.word, "service": Values.word, "city": Values.city,
    "package": Values.coined, "account": Values.label, "film": Values.title, "item": Values.label, "file": Values.path,
}  # fmt: skip
_VERBS = """delete open close start stop archive restart book cancel approve reject rename copy pause resume lock unlock
publish print scan install remove update enable disable assign buy sell rent pay ship track follow mute play
record reset test deploy""".split()  # noqa: SIM905
_GREETINGS = (
    (("Hello", "Hi", "Hello!", "Hi there", "Good morning", "Hey"), "Hello! How can I help you?"),
    (("Thanks", "Thank you", "Thanks a lot", "Thank you!", "Great, thanks"), "You are welcome."),
    (("Who are you?", "What are you?", "What is your name?"), "I am a small demo model that can call functions."),
    (
        ("What can you do?", "How can you help me?"),
        "I can call the functions that you offer, and tell you their results.",
    ),
    (("Bye", "Goodbye", "See you later"), "Goodbye!"),
    (("How are you?", "How are you doing?"), "I am fine, thank you. What can I do for you?"),
    (("Tell me a joke", "Say something funny"), "Two threads walk into a bar. The other one orders first."),
    (("Write a poem", "Write a story", "Sing a song"), "I am too small for that, but I can call functions for you."),
    (("OK", "Good", "Nice", "I see"), "Is there anything else?"),
    (("Are you a person?", "Are you human?"), "No, I am a small demo model."),
)


def small_talk(random: Random) -> tuple[str, str]:
    """Something that needs no function, and its answer."""
    said, answer = random.choice(_GREETINGS)
    return random.choice(said), answer


def invented(values: Values) -> Request:
    """A request of a function that exists nowhere else; held-out ones are about other nouns and verbs."""
    return _question(values) if values.random.random() < 0.7 else _command(values)


def _question(values: Values) -> Request:
    random = values.random
    noun, thing = values.listed(_NOUNS), random.choice(list(_THINGS))
    value = _THINGS[thing](values)
    snake, camel = noun.replace(" ", "_"), "".join(part.capitalize() for part in noun.split())
    name = random.choice((f"get_{snake}", f"get_{snake}", f"find_{snake}", f"lookup_{snake}", f"{snake}_of_{thing}",
                          f"{snake}_lookup", snake, f"get{camel}", f"fetch_{snake}", f"{thing}_{snake}"))  # fmt: skip
    about = random.choice(("", f"{noun.capitalize()} of a {thing}", f"Get the {noun} of a {thing}", f"Find the {noun}"))
    tool, arguments = _one_argument(name, about, thing, value, random)
    asked, more = _with_option(tool, arguments, values)
    text = random.choice(("What is the {n} of {v}{m}?", "What is the {n} of the {t} {v}{m}?",
                          "Tell me the {n} of {v}{m}.", "Find the {n} for {v}{m}.",
                          "Get the {n} of {t} {v}{m}.", "{N} of {v}{m}, please.",
                          "Which {n} does {v} have{m}?", "I need the {n} of {v}{m}."))  # fmt: skip
    return Request(
        family=noun, tool=tool, arguments=asked, about=f"The {noun} of {value}", follow_up=f"And of {value}{more}?",
        text=text.format(n=noun, N=noun.capitalize(), v=value, t=thing, m=more), result=_result(snake, values),
    )  # fmt: skip


def _command(values: Values) -> Request:
    random = values.random
    verb, thing = values.listed(_VERBS), random.choice(list(_THINGS))
    value = _THINGS[thing](values)
    name = random.choice((f"{verb}_{thing}", f"{verb}_{thing}", f"{verb}{thing.capitalize()}", f"{thing}_{verb}", verb))
    about = random.choice(("", f"{verb.capitalize()} a {thing}", f"{verb.capitalize()} one {thing}"))
    tool, arguments = _one_argument(name, about, thing, value, random)
    text = random.choice(
        ("{V} the {t} {v}.", "{V} {v}.", "Please {b} {v}.", "Can you {b} the {t} {v}?", "{V} {t} {v}.")
    )
    return Request(
        family=verb, tool=tool, arguments=arguments, about=f"The {thing} {value}", follow_up=f"And {value}.",
        text=text.format(V=verb.capitalize(), b=verb, t=thing, v=value),
        result={"status": random.choice(("done", "ok"))},
    )  # fmt: skip


def _one_argument(name: str, about: str, thing: str, value: str, random: Random) -> tuple[Json, Json]:
    key = random.choice((thing, thing, "name", "id", f"{thing}_name", f"{thing}_id", "target"))
    is_number = value.isdigit() and random.random() < 0.7
    schema = schema_of(
        "integer" if is_number else "string", random.choice(("", "", f"the {thing}", f"{key} of the {thing}"))
    )
    return definition(name, about, {key: schema}, [key]), {key: int(value) if is_number else value}


def _with_option(tool: Json, arguments: Json, values: Values) -> tuple[Json, str]:
    """At times one more argument that need not be there, and the words that ask for it."""
    random = values.random
    if random.random() < 0.65:
        return arguments, ""
    options: tuple[tuple[str, str, Any, str], ...] = (
        ("year", "integer", random.randint(1990, 2030), " in {}"),
        ("limit", "integer", values.number(50), ", at most {}"),
        ("date", "string", values.date(), " on {}"), ("country", "string", values.city(), " in {}"),
        ("language", "string", values.language(), " in {}"), ("days", "integer", values.number(30), " for {} days"),
    )  # fmt: skip
    key, kind, value, phrase = random.choice(options)
    properties = tool["function"]["parameters"]["properties"]
    if key in properties:
        return arguments, ""
    properties[key] = schema_of(kind, "")
    return (arguments | {key: value}, phrase.format(value)) if random.random() < 0.6 else (arguments, "")


def _result(key: str, values: Values) -> Json:
    value: Any = values.random.choice(
        (values.number(), values.title(), values.label(), values.decimal(), values.date())
    )
    return {values.random.choice((key, "value", "result")): value}
