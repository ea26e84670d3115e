"""Inspection of half-labelled data: class shares of the pool, and a test whether labels are missing at random.

`inspect_data` inspects a `PartlyLabeled` and returns an `Inspection`, which consists of `ClassFindings` (with an
`Estimate` of each share), `ProbeFindings`, the result of the test and a recommendation.
"""

from mnar.own_data.inspection.inspection import ClassFindings, Estimate, Inspection, ProbeFindings, inspect_data

__all__ = ["ClassFindings", "Estimate", "Inspection", "ProbeFindings", "inspect_data"]
