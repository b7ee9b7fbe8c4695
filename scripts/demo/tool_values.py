"""Values that requests of the tool model's corpus are about; those of the held-out part appear in no training text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

_CITIES = """Paris Bern London Madrid Rome Oslo Vienna Lisbon Dublin Prague Warsaw Athens Helsinki Stockholm Brussels
Budapest Berlin Munich Hamburg Zurich Geneva Lyon Nice Porto Seville Milan Naples Turin Florence Cairo Nairobi Lagos
Accra Tunis Dakar Tokyo Kyoto Osaka Seoul Beijing Shanghai Delhi Mumbai Jakarta Manila Hanoi Bangkok Sydney Perth
Auckland Toronto Montreal Boston Chicago Denver Dallas Houston Austin Seattle Miami Lima Quito Bogota Santiago Havana
New_York San_Francisco Los_Angeles Mexico_City Buenos_Aires Cape_Town Hong_Kong Tel_Aviv Abu_Dhabi San_Diego
Zürich São_Paulo Malmö Córdoba Kraków Reykjavik Bergen Gdansk Riga Tallinn Vilnius Sofia Belgrade Zagreb""".split()  # noqa: SIM905
_PEOPLE = """Anna Ben Carla David Emma Felix Greta Hugo Ida Jonas Klara Leo Mia Noah Olga Paul Rosa Simon Tina Uwe
Vera Walter Alice Bob Carol Dan Erin Frank Grace Heidi Ivan Judy Mallory Nina Oscar Peggy Trent Victor Wendy""".split()  # noqa: SIM905
_WORDS = """report budget meeting notes draft invoice garden recipe bread coffee train ticket hotel beach mountain river
history music guitar piano lesson school teacher doctor dentist lunch dinner party birthday holiday travel guide cheap
flights summer winter spring autumn solar panel energy battery engine robot rocket planet ocean forest animal bird fish
python rust kernel server cluster network router storage backup cache token model weights paper science chess football
tennis running health sleep yoga movie cinema theatre museum painting camera phone laptop keyboard desk chair lamp
window kitchen review team project launch release sales market customer contract salary tax bank loan
house rent""".split()  # noqa: SIM905
_EXTENSIONS = ("txt", "md", "py", "json", "csv", "log", "yaml", "toml", "html")
_ONSETS = ("b", "br", "c", "d", "dr", "f", "g", "gr", "h", "j", "k", "kl", "l", "m", "n", "p", "pl", "r", "s", "st",
           "t", "tr", "v", "w", "z", "sh", "ch", "th")  # fmt: skip
_VOWELS = ("a", "e", "i", "o", "u", "ai", "ea", "io", "ou")
_CODAS = ("", "", "n", "r", "s", "l", "m", "ck", "nd", "rt", "x")
HELD_OUT_ONE_IN = 8


@dataclass(frozen=True, slots=True)
class Values:
    """Draws values.

    Args:
        random: of the conversation.
        is_held_out: takes listed words that training never has.
    """

    random: Random
    is_held_out: bool = False

    def listed(self, words: Sequence[str]) -> str:
        """One of a list, from this part's share of it."""
        share = [w for i, w in enumerate(words) if (i % HELD_OUT_ONE_IN == 3) == self.is_held_out]
        return self.random.choice(share).replace("_", " ")

    def coined(self) -> str:
        """A word that does not exist; held-out ones have another number of syllables."""
        count = 4 if self.is_held_out else self.random.choice((1, 2, 2, 3))
        return "".join(map(self.random.choice, (_ONSETS, _VOWELS, _CODAS) * count))

    def word(self) -> str:
        """A common noun."""
        return self.coined() if self.random.random() < 0.15 else self.listed(_WORDS)

    def words(self, least: int = 2, most: int = 4) -> str:
        """A few nouns, as a search has them."""
        return " ".join(self.word() for _ in range(self.random.randint(least, most)))

    def title(self) -> str:
        """A few nouns, the first with a capital."""
        text = self.words(1, 3)
        return text[0].upper() + text[1:]

    def city(self) -> str:
        """A place."""
        return self.coined().capitalize() if self.random.random() < 0.4 else self.listed(_CITIES)

    def person(self) -> str:
        """A name, at times with a surname."""
        first = self.listed(_PEOPLE)
        return first if self.random.random() < 0.6 else f"{first} {self.coined().capitalize()}"

    def email(self) -> str:
        """An address."""
        name = self.listed(_PEOPLE).lower() if self.random.random() < 0.5 else self.coined()
        return f"{name}@{self.word()}.{self.random.choice(('com', 'org', 'net', 'io'))}"

    def path(self) -> str:
        """A file, with folders or without."""
        folders = [self.word() for _ in range(self.random.choice((0, 0, 1, 1, 2)))]
        root = "/" if folders and self.random.random() < 0.4 else ""
        return root + "/".join([*folders, f"{self.word()}.{self.random.choice(_EXTENSIONS)}"])

    def number(self, most: int = 9999) -> int:
        """A whole number from 1 on; small ones are as frequent as large ones."""
        return self.random.randint(1, min(most, 10 ** self.random.randint(1, 4)))

    def decimal(self) -> str:
        """A number as people write it in sums."""
        return str(self.number()) if self.random.random() < 0.85 else f"{self.number(99)}.{self.random.randint(1, 99)}"

    def expression(self) -> str:
        """A sum of two to four numbers."""
        parts = [self.decimal()]
        blank = self.random.choice((" ", " ", ""))
        for _ in range(self.random.choice((1, 1, 2, 3))):
            parts += [self.random.choice("+-*/"), self.decimal()]
        if len(parts) > 3 and self.random.random() < 0.5:
            parts[0], parts[2] = f"({parts[0]}", f"{parts[2]})"
        return blank.join(parts)

    def date(self) -> str:
        """A day."""
        year, month, day = self.random.randint(2019, 2031), self.random.randint(1, 12), self.random.randint(1, 28)
        return f"{year}-{month:02}-{day:02}"

    def time(self) -> str:
        """A time of the day."""
        return f"{self.random.randint(0, 23):02}:{self.random.choice((0, 0, 5, 15, 20, 30, 40, 45)):02}"

    def currency(self) -> str:
        """A currency's code."""
        return self.random.choice(("EUR", "USD", "CHF", "GBP", "JPY", "SEK", "NOK", "PLN", "CAD", "AUD", "INR", "BRL"))

    def language(self) -> str:
        """A language."""
        return self.random.choice(("French", "German", "Spanish", "Italian", "Polish", "Dutch", "Greek", "Japanese"))

    def label(self) -> str:
        """Something with a number, as servers, orders and tickets have it."""
        number = self.number()
        return self.random.choice((f"{self.word()}-{number}", f"{self.random.choice('ABCDEXZ')}{number}", f"{number}"))
