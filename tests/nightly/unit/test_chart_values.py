"""Values that the chart refuses, each with its path; what a network is."""

from __future__ import annotations

import hypothesis
from support import chart_values, charts
from support.charts import Object
from tarsy_dev import chart


@hypothesis.settings(max_examples=15, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
@hypothesis.given(drawn=chart_values.values())
def test_whatever_the_schema_takes_renders_objects(drawn: Object) -> None:
    """Whether a cluster takes them is asked in tests/cluster."""
    try:
        found = charts.render(drawn)
    except chart.RefusedError as error:
        if "values don't go together" not in str(error):
            raise
        hypothesis.reject()
    seen = [(one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]) for one in found]
    assert len(seen) == len(set(seen))
    for one in found:
        texts = one["metadata"].get("labels", {}) | one["metadata"].get("annotations", {})
        assert all(isinstance(text, str) for text in (one["metadata"]["name"], *texts, *texts.values()))
    for template in charts.pod_templates(found).values():
        texts = template["metadata"]["labels"] | template["metadata"].get("annotations", {})
        assert all(isinstance(text, str) for text in (*texts, *texts.values()))
        (container,) = template["spec"]["containers"]
        assert all(isinstance(word, str) for word in (*container.get("command", ()), *container.get("args", ())))
