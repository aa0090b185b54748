"""Log groups: their streams and events, retention, subscription filters, queries and live tails."""
