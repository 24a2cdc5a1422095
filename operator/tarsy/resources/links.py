"""The links to its page that the object of an investigation carries as annotations, from its creation on.

The page is named by the object's namespace and name, because nobody knows its uid before it exists; `web.by_name` leads
on to the page by uid.

Sources: Argo CD documentation, "External URL Links"; `AnnotationKeyLinkPrefix` in its common.go, of which the value is
a URL, or a title and a URL with | between them.
"""

from __future__ import annotations

from tarsy.resources import base

PAGE = f"{base.GROUP}/page"
"""The URL, for people and for tools that show annotations as they are."""
ARGO_CD = "link.argocd.argoproj.io/tarsy"
"""The URL with a title, of which Argo CD makes a link."""


def page_annotations(pages: str, *, namespace: str, name: str) -> dict[str, str]:
    """Return the annotations of an object; `pages` is the public address of the pages."""
    url = f"{pages}/inv/{namespace}/{name}"
    return {PAGE: url, ARGO_CD: f"TARSy investigation|{url}"}
