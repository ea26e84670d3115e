"""What half-labelled data say about their missing labels."""

from mnar.own_data.inspection.inspection import ClassFindings, Estimate, Inspection, ProbeFindings, inspect_data

__all__ = ["ClassFindings", "Estimate", "Inspection", "ProbeFindings", "inspect_data"]
