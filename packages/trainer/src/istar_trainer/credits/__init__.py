"""Credit methods by name: the plain table from a configuration to its class."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from istar_trainer import config_credits as cfg
from istar_trainer.credits.base import BatchOutcomes, Credit, CreditParts, StepCredit, counted_rows
from istar_trainer.credits.env_steps import EnvStepsCredit
from istar_trainer.credits.gigpo import GigpoCredit
from istar_trainer.credits.istar import IstarCredit
from istar_trainer.credits.itpo import ItpoCredit
from istar_trainer.credits.merged import MergedCredit
from istar_trainer.credits.none import NoCredit
from istar_trainer.credits.official import IstarOfficialCredit
from istar_trainer.credits.oracle import OracleCredit
from istar_trainer.credits.prime import PrimeCredit
from istar_trainer.credits.sum import SumCredit
from istar_trainer.credits.token_pr import TokenPrCredit

__all__ = ["CREDITS", "BatchOutcomes", "Credit", "CreditParts", "StepCredit", "counted_rows", "make_credit"]


def make_credit(config: cfg.CreditConfig, parts: CreditParts) -> Credit:
    """Return the credit method that a configuration describes.

    Args:
        config: Any method of ``config_credits``.
        parts: Models and settings to build it from.

    Raises:
        ConfigError: If the environment lacks what the method needs.
    """
    return CREDITS[type(config)](config, parts)


CREDITS: Final[Mapping[type[cfg.Method], Callable[[Any, CreditParts], Credit]]] = MappingProxyType(
    {
        cfg.NoCredit: lambda _config, _parts: NoCredit(),
        cfg.IstarCredit: IstarCredit.build,
        cfg.GigpoCredit: lambda config, _parts: GigpoCredit(config),
        cfg.PrimeCredit: PrimeCredit.build,
        cfg.EnvStepsCredit: lambda config, _parts: EnvStepsCredit(config),
        cfg.MergedCredit: MergedCredit.build,
        cfg.TokenPrCredit: TokenPrCredit.build,
        cfg.ProcessOnlyCredit: IstarCredit.build,
        cfg.ItpoCredit: ItpoCredit.build,
        cfg.OracleCredit: OracleCredit.build,
        cfg.IstarOfficialCredit: IstarOfficialCredit.build,
        cfg.SumCredit: lambda config, parts: SumCredit([make_credit(part, parts) for part in config.parts]),
    }
)
"""How each method is made from its configuration."""
