"""The HTTP server: uvicorn with limits on connections, on request heads and bodies, and on the time they take."""
