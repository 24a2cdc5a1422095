"""The ground of the store: connections, tables, migrations, notifications and the audit."""
