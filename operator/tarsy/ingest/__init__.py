"""From an alert source's payload to the object that asks for an investigation. Pure: no cluster, no store."""
