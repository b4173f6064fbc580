"""Verifiers, judges and preference pairs for episodes of language-model agents."""

from istar_judges.asking import Sampling
from istar_judges.base import Judge, Verifier
from istar_judges.budget import Budget
from istar_judges.cache import VerdictCache
from istar_judges.canaries import canary_episodes
from istar_judges.dialogue import JudgedDialogue, dialogue_of
from istar_judges.dialogue_judge import DialogueJudge, penalty_for_length
from istar_judges.drift import CanaryReport, canary_report, judge_canaries
from istar_judges.errors import CacheMiss, JudgeError, JudgeRefused, JudgeUnavailable, VerdictUnreadable
from istar_judges.fakes import ReplayJudge, StubJudge
from istar_judges.llm_judge import LlmJudge, require_distinct
from istar_judges.outcome_files import JudgedEpisode, read_outcomes, trajectory_ids
from istar_judges.pair_datasets import to_dataset, write_dataset, write_parquet
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
from istar_judges.panel import Panel
from istar_judges.results import JudgeResult, ScoreRule
from istar_judges.rubric import Band, Dimension, Rubric, load_rubric
from istar_judges.soft_labels import noise_target, score_errors
from istar_judges.sokoban import SokobanVerifier
from istar_judges.sotopia import SotopiaVerifier
from istar_judges.verifiers import VERIFIERS, make_verifier, verifier_of
from istar_judges.webshop import WebShopVerifier

__all__ = [
    "VERIFIERS",
    "Band",
    "Budget",
    "CacheMiss",
    "CanaryReport",
    "ChatMessage",
    "DialogueJudge",
    "Dimension",
    "Judge",
    "JudgeError",
    "JudgeRefused",
    "JudgeResult",
    "JudgeUnavailable",
    "JudgedDialogue",
    "JudgedEpisode",
    "LlmJudge",
    "PairRule",
    "Panel",
    "PreferenceExample",
    "PreferencePair",
    "ReplayJudge",
    "Rubric",
    "Sampling",
    "ScoreRule",
    "SokobanVerifier",
    "SotopiaVerifier",
    "StubJudge",
    "VerdictCache",
    "VerdictUnreadable",
    "Verifier",
    "WebShopVerifier",
    "canary_episodes",
    "canary_report",
    "content_key",
    "dialogue_of",
    "judge_canaries",
    "load_rubric",
    "make_pairs",
    "make_verifier",
    "noise_target",
    "penalty_for_length",
    "preference_example",
    "read_outcomes",
    "read_pairs",
    "read_preference_examples",
    "require_distinct",
    "score_errors",
    "soft_target",
    "to_dataset",
    "trajectory_ids",
    "verifier_of",
    "weigh_pairs",
    "write_dataset",
    "write_pairs",
    "write_parquet",
    "write_preference_examples",
]
