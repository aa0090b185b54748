"""Tables: items by key, in SQLite files, PostgreSQL or DynamoDB. `access` chooses the store by a table's URL."""
