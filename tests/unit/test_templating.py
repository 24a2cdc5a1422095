"""Templates of the platform file: sandboxed and bounded."""

from __future__ import annotations

import pytest
from tarsy import templating

NAMES = ("event", "text")


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("{{ event", "line 1 of the template: unexpected end of template"),
        ("{% for %}", "line 1 of the template: "),
        ("{{ secret }}", "the template reads secret, and there are event, text"),
        ("{% include 'x' %}{{ others.a }}", "the template reads others"),
    ],
)
def test_invalid_template_is_refused_with_location_of_problem(source: str, problem: str) -> None:
    with pytest.raises(templating.TemplateError) as error:
        templating.check(source, names=NAMES)
    assert str(error.value).startswith(problem)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ event.append(1) }}",
        "{{ 'x' * 1000000000 }}",
        "{{ 9 ** 9 ** 9 }}",
        "{{ text.nothing.more }}",
        "{% for a in range(100000000) %}x{% endfor %}",
        "{% include 'secret' %}",
        "{{ '{0.__class__.__init__.__globals__}'.format(event) }}",
    ],
)
def test_template_cannot_leave_its_values_or_change_them(source: str) -> None:
    with pytest.raises(templating.TemplateError) as error:
        templating.render(source, {"event": ["whsec_secret"], "text": {}}, limit=100)
    assert "whsec_secret" not in str(error.value)


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in text %}{% for b in text %}{% for c in text %}{% set x = 1 %}{% endfor %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n > 0 %}{% set a = f(n - 1) %}{% set b = f(n - 1) %}{% endif %}{% endmacro %}{{ f(60)}}",
    ],
    ids=["nested loops", "macros"],
)
def test_looping_template_ends_at_step_limit_and_next_template_has_its_own_limit(source: str) -> None:
    for _ in range(2):
        with pytest.raises(templating.TemplateError, match="more than 10000 rounds of loops and calls"):
            templating.render(source, {"text": "x" * 8000}, limit=100)
    rounds = "{% for a in text if a != 'y' %}{{ loop.index }}{{ ', ' if not loop.last }}{% else %}none{% endfor %}"
    assert templating.render(rounds, {"text": "xyx"}, limit=100) == "1, 2"
    assert templating.render(rounds, {"text": ""}, limit=100) == "none"


def test_template_with_recursive_loop_is_refused() -> None:
    with pytest.raises(templating.TemplateError, match="line 1 of the template: a recursive loop is not allowed"):
        templating.check("{% for a in text recursive %}{{ loop(a) }}{% endfor %}", names=NAMES)


def test_output_is_bounded_and_values_are_no_templates() -> None:
    values = {"event": "{{ 1 + 1 }}<b>", "text": "t"}
    assert templating.render("{{ event }}", values, limit=100) == "{{ 1 + 1 }}<b>"
    long = templating.render("{% for a in range(90000) %}{{ event }}{% endfor %}", values, limit=10)
    assert long == "{{ 1 + 1 }}"
