"""The routes for alerts: webhooks, posted alerts, and the chain that would take an alert."""
