"""REST APIs (API Gateway version 1).

- `server`: a request from the stage to the response
- `definitions`: an API's definition, as its deployment stored it
- `calls`: a request with its parameters and ``$context``
- `request_checks`: API key, required parameters and body model
- `authorizers`: asks the method's authorizer
- `integrations`: calls the method's integration and makes the method's response
- `proxy_events`: events for functions, and responses from their answers (``AWS_PROXY``)
- `mapping_templates`, `parameter_mapping`: Velocity templates; parameters such as ``integration.request.header.X``
- `gateway_responses`: the answers of API Gateway itself, for example 403 and 504
"""
