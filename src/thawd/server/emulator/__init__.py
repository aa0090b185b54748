"""``thawd up --aws``: an emulator of other AWS services in a separate process.

`process` starts and stops that process for the server. `program` runs moto in it, where `keeper` and `state` save the
state of the emulated services in the data folder.
"""
