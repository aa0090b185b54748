"""Tables of ``thawd.table``: items by key, in SQLite files, PostgreSQL or DynamoDB.

The emulated DynamoDB of ``thawd up --aws`` is not here: moto implements it, with its condition expressions.

- `access`: the interface of every store; chooses the store by a table's URL
- `key_and_item_checks`: which keys and items are allowed
- `sqlite`, `postgresql`, `dynamodb`: the three stores
- `postgresql_connection`: a connection that gives up at a deadline
- `threads`: runs blocking clients on threads
"""
