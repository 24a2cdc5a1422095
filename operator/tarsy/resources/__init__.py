"""The two kinds of `tarsy.dev/v1alpha1` as pydantic models, their names and their CRD schema."""
