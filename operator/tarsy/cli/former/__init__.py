"""Conversion of the founding documents' YAML."""
