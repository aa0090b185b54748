"""The documentation site: which pages it has, and how `make docs` builds them.

The source folder is the repository's root and not ``docs/``. Pages link to README.md, SPECIFICATION.md,
native/README.md and examples as they lie in the repository, so every link works on the site and in the repository.

Source: docs/decisions/0013-documentation-site.md says why Sphinx, MyST and Furo.
"""

from __future__ import annotations

import thawd

project = "thawd"
author = "the thawd authors"
copyright = author
version = release = thawd.__version__

root_doc = "docs/index"
include_patterns = [
    "docs/**",
    "README.md",
    "SPECIFICATION.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "native/README.md",
    "benchmarks/README.md",
    "examples/*/README.md",
]
# Folders that are not to be searched at all: environments and builds hold thousands of files.
exclude_patterns = [".*", "build", "dist", "src", "tests", "tools", "**/.thawd", "**/function", "**/held-out"]
templates_path = ["_templates"]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_heading_anchors = 4
highlight_language = "text"
nitpicky = False

# In docstrings `name` is code; Sphinx would take it for a cross-reference.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
napoleon_google_docstring = True
napoleon_numpy_docstring = False

html_theme = "furo"
html_title = "thawd"
html_static_path = ["_static"]
html_css_files = ["site.css"]
# The site begins at docs/index.html; index.html beside it leads there.
html_additional_pages = {"index": "start.html"}
html_copy_source = False
html_show_sphinx = False
# Excerpts below results are fetched, which browsers refuse to pages that were opened as files.
html_show_search_summary = False
html_theme_options = {"source_edit_link": "", "top_of_page_buttons": []}
