"""``thawd up --aws``: an emulator of other AWS services in a separate process.

`process` is the server's side. `program` runs moto in the other process, where `keeper` and `state` save the state of
the emulated services in the data folder.
"""
