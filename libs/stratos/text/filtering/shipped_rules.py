"""Rules that come with the platform, by group; tests measure what they find and miss.

Patterns are RE2 and match at most 64 characters, the least window that holds them.  They are written for what is typed
plainly: a text that is spelt to slip past them, does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleGroup:
    """Words and patterns by rule id."""

    words: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    patterns: Mapping[str, str] = field(default_factory=dict)


_SECRETS = RuleGroup(
    patterns={
        "aws-key": r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",
        "github-token": r"\b(?:gh[pousr]_[0-9A-Za-z]{36}|github_pat_[0-9A-Za-z_]{22})",
        "slack-token": r"\bxox[abprs]-[0-9A-Za-z-]{10}",
        "google-key": r"\bAIza[0-9A-Za-z_-]{35}",
        "payment-api-key": r"\b[rs]k_(?:live|test)_[0-9A-Za-z]{16}",
        "model-api-key": r"\bsk-(?:[0-9a-f]{12}-[0-9a-f]{40}|[A-Za-z0-9]{32})",
        "web-token": r"\beyJ[0-9A-Za-z_-]{8,40}\.eyJ[0-9A-Za-z_-]{8}",
        "private-key": r"-----BEGIN (?:[A-Z]{2,10} )?PRIVATE KEY-----",
        "assigned-secret": (
            r"(?i)\b(?:password|passwd|pwd|api[_-]?key|secret|token)\s{0,3}[:=]\s{0,3}[\"']?[^\s\"'<{$*]{8}"
        ),
    }
)
_PERSONAL_DATA = RuleGroup(
    patterns={
        "email": r"\b[A-Za-z0-9._%+-]{1,32}@[A-Za-z0-9-]{1,20}(?:\.[A-Za-z0-9-]{1,10}){0,1}\.[A-Za-z]{2}",
        "us-social-security": r"\b[0-9]{3}-[0-9]{2}-[0-9]{4}\b",
        "payment-card": (
            r"\b(?:(?:4[0-9]{3}|5[1-5][0-9]{2}|6011)(?:[ -]?[0-9]{4}){3}|3[47][0-9]{2}[ -]?[0-9]{6}[ -]?[0-9]{5})\b"
        ),
        "iban": r"\b[A-Z]{2}[0-9]{2}(?: ?[0-9A-Z]{4}){3,7}(?: ?[0-9A-Z]{1,3})?\b",
        "phone": (
            r"(?:\+[1-9][0-9]{0,2}[ .-]?(?:\([0-9]{1,4}\)[ .-]?)?[0-9]{2,4}(?:[ .-]?[0-9]{2,4}){2,3}\b"
            r"|(?:\([2-9][0-9]{2}\) ?|\b[2-9][0-9]{2}[ .-])[0-9]{3}[ .-][0-9]{4}\b)"
        ),
    }
)
_ABUSE = RuleGroup(
    words={
        "profanity": (
            "fuck", "fucks", "fucked", "fucker", "fucking", "motherfucker", "shit", "shitty", "bullshit", "asshole",
            "bitch", "bitches", "bastard", "cunt", "dickhead", "wanker", "piece of shit",
        ),
        "harassment": (
            "kill yourself", "kys", "go die", "drop dead", "no one would miss you", "you deserve to die",
            "i hope you die",
        ),
    },
    patterns={
        "threat": (
            r"(?i)\bi(?:['\x{2019}]ll| will|['\x{2019}]m going to| am going to|['\x{2019}]m gonna) "
            r"(?:kill|murder|stab|shoot|strangle|hurt|burn) (?:you|him|her|them)\b"
        ),
        "weapons": (
            r"(?i)\b(?:make|build|making|building|construct|assemble) (?:a |an |my own )?"
            r"(?:pipe ?|nail |petrol |car |homemade )?(?:bombs?|explosives?|nerve agents?|molotov)\b"
        ),
    },
)  # fmt: skip
_INJECTION = RuleGroup(
    patterns={
        "override": (
            r"(?i)\b(?:ignore|disregard|forget|override) (?:all |any |every |your )?(?:of )?(?:the |your |my )?"
            r"(?:previous|prior|above|earlier|preceding|system|original) (?:instructions?|prompts?|rules|directions)\b"
        ),
        "prompt-leak": (
            r"(?i)\b(?:reveal|print|show|repeat|output|tell me) (?:me )?(?:your |the )?"
            r"(?:full |entire |hidden |secret |initial )?(?:system|developer|hidden) (?:prompt|message|instructions)\b"
        ),
        "persona": (
            r"(?i)\b(?:you are now|act as|pretend to be) (?:in )?(?:DAN|developer mode|an unrestricted|jailbroken)\b"
        ),
    }
)
SHIPPED_GROUPS: Mapping[str, RuleGroup] = {
    "secrets": _SECRETS,
    "personal-data": _PERSONAL_DATA,
    "abuse": _ABUSE,
    "injection": _INJECTION,
}
