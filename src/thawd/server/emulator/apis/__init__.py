"""API Gateway of ``thawd up --aws``: serves the REST and HTTP APIs that were made in moto, the AWS emulator.

moto stores the definitions of APIs and serves none of them properly. This package runs in the emulator's own process,
beside moto. `serving` finds the API for a request. `rest` serves REST APIs and `http` HTTP APIs: each finds the method
or route, asks the authorizer, calls the integration and makes the response. `operations` adds to moto's API Gateway
what it lacks, for example deployments that later changes do not affect.
"""
