"""uvicorn's protocol with limits on connections, on request heads and bodies, and on the time they take."""
