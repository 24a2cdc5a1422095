"""Everything that is known of an investigation, by its export."""

from __future__ import annotations

from uuid import UUID

from tarsy.api.investigations import exports
from tarsy.store.base import databases
from tarsy.store.reads import summaries
from tarsy.views import investigations


async def whole(database: databases.Database, identity: UUID) -> investigations.Export:
    """The export of an investigation that was admitted, read as the document that it is."""
    head = await summaries.details(database, identity)
    assert head is not None
    return investigations.Export.model_validate_json(
        b"".join([piece async for piece in exports.as_json(database, head)])
    )
