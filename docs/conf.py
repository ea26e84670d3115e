"""Configuration of the documentation site; `make docs` builds it into docs/_build/html without any network access."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

import mnar

project = "mnar"
version = release = mnar.__version__
copyright = "2026, the mnar developers"
html_title = f"mnar {release}"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode", "mnar_docs"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build", "_ext"]

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]

autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False
autodoc_typehints = "signature"
autodoc_class_signature = "mixed"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
add_module_names = False
toc_object_entries_show_parents = "hide"

nitpicky = True
nitpick_ignore_regex = [
    ("py:.*", r"(?!mnar\b).*"),  # names of other projects: a build has no network access to find their pages
    ("py:class", r"mnar\..*"),  # types in signatures that are not public themselves
]

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["mnar.css"]
html_show_sphinx = False
html_copy_source = False
