"""Means, spreads and correlations of values for the log; NaN where there is none."""

from jaxtyping import Float, Int
from torch import Tensor

Values = Float[Tensor, " values"] | Int[Tensor, " values"]


def mean(values: Values) -> float:
    """Mean in float64; NaN of nothing."""
    return float(values.double().mean()) if len(values) else float("nan")


def std(values: Values) -> float:
    """Population standard deviation in float64; NaN of nothing."""
    return float(values.double().std(correction=0)) if len(values) else float("nan")


def correlation(left: Values, right: Values) -> float:
    """Pearson correlation; NaN when one side does not vary."""
    a, b = left.double() - left.double().mean(), right.double() - right.double().mean()
    scale = float((a.square().sum() * b.square().sum()).sqrt())
    return float((a * b).sum()) / scale if scale > 0 else float("nan")
