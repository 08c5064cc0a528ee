"""The version, apart from the package so that building needs none of its dependencies."""

__version__ = "0.1.0"
