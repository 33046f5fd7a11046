"""The site: `make docs` builds it from what is in the repository, offline, and takes every warning for an error."""

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))
os.environ.setdefault("MPLBACKEND", "agg")

import lmd

project, author, version, release = "lmd", "the lmd developers", lmd.__version__, lmd.__version__
copyright = author
extensions = ["myst_parser", "sphinx_gallery.gen_gallery", "claim", "executed", "mathml", "reference"]
myst_enable_extensions = ["dollarmath", "colon_fence", "attrs_block"]
myst_fence_as_directive = ["math"]
myst_heading_anchors = 3
exclude_patterns = [
    "_build",
    "measurements",
    "gallery/*.ipynb",
    "gallery/*.py",
    "gallery/*.md5",
    "sg_execution_times.rst",
]
suppress_warnings = ["config.cache", "myst.header"]
html_math_renderer = "mathml"
html_theme = "pydata_sphinx_theme"
html_title = "lmd"
html_static_path = ["images", "_static"]
html_show_sourcelink = False
html_theme_options = {
    "navigation_with_keys": False,
    "show_prev_next": False,
    "header_links_before_dropdown": 8,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
}
html_context = {"default_mode": "auto"}
html_css_files = ["site.css"]
html_sidebars = {"start": [], "peers": [], "paper": []}
sphinx_gallery_conf = {
    "examples_dirs": "../examples/gallery",
    "gallery_dirs": "gallery",
    "filename_pattern": r"\.py$",
    "abort_on_example_error": False,
    "download_all_examples": False,
    "remove_config_comments": True,
    "show_memory": False,
    "show_signature": False,
    "plot_gallery": "True",
    "matplotlib_animations": False,
    "min_reported_time": 30,
    "within_subsection_order": "FileNameSortKey",
}
