"""Documents in the formats of `-o`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import click

from tarsy.cli.client import jsonpath, terminal


class Format(click.ParamType[str]):
    """The value of `-o`: a format, or jsonpath=TEMPLATE where `json` is allowed."""

    name = "format"

    def __init__(self, *words: str) -> None:
        self.words = words

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:  # noqa: ARG002 - click's signature
        """Return the formats, for the help."""
        return "|".join([*self.words, *(["jsonpath=..."] if "json" in self.words else [])])

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Check a format, and the template of a jsonpath."""
        text = str(value)
        if text.startswith("jsonpath=") and "json" in self.words:
            try:
                jsonpath.render(text.removeprefix("jsonpath="), {})
            except jsonpath.TemplateError as error:
                self.fail(f"jsonpath: {error}", param, ctx)
        elif text not in self.words:
            self.fail(f"{text!r} is not one of {', '.join(self.words)}", param, ctx)
        return text

    def shell_complete(
        self,
        ctx: click.Context,  # noqa: ARG002 - click's signature
        param: click.Parameter,  # noqa: ARG002 - click's signature
        incomplete: str,
    ) -> list[click.shell_completion.CompletionItem]:
        """Return the formats that begin with `incomplete`."""
        return [click.shell_completion.CompletionItem(word) for word in self.words if word.startswith(incomplete)]


def option(*words: str) -> Callable[[Any], Any]:
    """Return the option `-o` with these formats."""
    return click.option("-o", "--output", "form", type=Format(*words), help="The format of the output.")


def print_document(document: Any, form: str) -> None:
    """Print a document as json, jsonl (one line), yaml or by a jsonpath."""
    click.echo(text(document, form), nl=not form.startswith("jsonpath="))


def text(document: Any, form: str) -> str:
    """Return a document as json, jsonl (one line), yaml or by a jsonpath, without control characters."""
    if form == "json":
        return terminal.clean_json(json.dumps(document, ensure_ascii=False, indent=2))
    if form == "jsonl":
        return terminal.clean_json(json.dumps(document, ensure_ascii=False, separators=(",", ":")))
    if form == "yaml":
        import yaml

        return terminal.clean(yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=120)).rstrip("\n")
    return terminal.clean(jsonpath.render(form.removeprefix("jsonpath="), document))


class Items:
    """A list that is printed page by page; with json and yaml, the pages form one document."""

    def __init__(self, form: str) -> None:
        self._form = form
        self._count = 0

    def print(self, items: Sequence[Any]) -> None:
        """Print a page of items."""
        for item in items:
            if self._form == "jsonl":
                click.echo(text(item, "jsonl"))
            elif self._form == "json":
                click.echo('{"items": [' if self._count == 0 else ",")
                click.echo(text(item, "json"), nl=False)
            else:
                if self._count == 0:
                    click.echo("items:")
                click.echo(text([item], "yaml"))
            self._count += 1
        if self._form.startswith("jsonpath=") and items:
            print_document({"items": list(items)}, self._form)

    def end(self) -> None:
        """Close the document."""
        if self._form == "json":
            click.echo("\n]}" if self._count else '{"items": []}')
        elif self._form == "yaml" and self._count == 0:
            click.echo("items: []")
