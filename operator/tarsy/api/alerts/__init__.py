"""Routes that take alerts: webhooks and posted alerts."""
