"""What stands before uvicorn's protocol: limits on connections, request heads and the time they take."""
