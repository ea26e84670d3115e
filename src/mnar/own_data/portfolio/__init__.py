"""The portfolio: several kinds of classifiers with and without the pool, a choice among them, and their combination."""

from mnar.own_data.portfolio.member import Inputs, Samples
from mnar.own_data.portfolio.members import members_for
from mnar.own_data.portfolio.portfolio import OBJECTIVES, Choice, Objective, Portfolio, fit_portfolio

__all__ = ["OBJECTIVES", "Choice", "Inputs", "Objective", "Portfolio", "Samples", "fit_portfolio", "members_for"]
