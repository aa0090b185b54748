"""How a server is put together from its settings: `platform` composes the subsystems of the other modules."""
