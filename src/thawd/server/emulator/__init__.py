"""Implements ``thawd up --aws``: an emulator of other AWS services, in a separate process.

`starting` starts and stops that process for the server. `program` is what runs in it: moto, a library that emulates AWS
services in memory. In that process, `keeper` decides when the state of the emulated services is saved in the data
folder, and `state` saves it. `cloudformation` makes stacks, and `apis` serves the APIs of API Gateway.
"""
