"""How a server is put together from its settings: `platform` joins what the other modules make."""
