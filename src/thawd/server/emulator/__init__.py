"""``thawd up --aws``: an emulator of other AWS services in a process of its own.

`process` is the server's end; `program` runs moto there, and `state` and `keeper` keep what it holds in the data
folder.
"""
