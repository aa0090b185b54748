"""Tables: items by key, in SQLite files, PostgreSQL or DynamoDB; `access` finds the store by a table's URL."""
