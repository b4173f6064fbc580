"""Verifiers, judges and preference pairs for episodes of language-model agents."""

from istar_judges.base import Judge, Verifier
from istar_judges.errors import JudgeError, JudgeRefused, JudgeUnavailable, VerdictUnreadable
from istar_judges.pair_files import (
    ChatMessage,
    PreferenceExample,
    preference_example,
    read_pairs,
    read_preference_examples,
    write_pairs,
    write_preference_examples,
)
from istar_judges.pairs import PairRule, PreferencePair, content_key, make_pairs, soft_target, weigh_pairs
from istar_judges.sokoban import SokobanVerifier
from istar_judges.verifiers import VERIFIERS, make_verifier, verifier_of
from istar_judges.webshop import WebShopVerifier

__all__ = [
    "VERIFIERS",
    "ChatMessage",
    "Judge",
    "JudgeError",
    "JudgeRefused",
    "JudgeUnavailable",
    "PairRule",
    "PreferenceExample",
    "PreferencePair",
    "SokobanVerifier",
    "VerdictUnreadable",
    "Verifier",
    "WebShopVerifier",
    "content_key",
    "make_pairs",
    "make_verifier",
    "preference_example",
    "read_pairs",
    "read_preference_examples",
    "soft_target",
    "verifier_of",
    "weigh_pairs",
    "write_pairs",
    "write_preference_examples",
]
