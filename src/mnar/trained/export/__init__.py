"""Export the model of a run, so that it can be used without mnar: ONNX, a torch.export program, or safetensors.

A run becomes one torch module (program.py) from raw samples to probabilities. The module is traced once, and each
format writes the traced program.
"""

from mnar.trained.export.export_run import FORMATS, Exported, Target, default_folder, export_run

__all__ = ["FORMATS", "Exported", "Target", "default_folder", "export_run"]
