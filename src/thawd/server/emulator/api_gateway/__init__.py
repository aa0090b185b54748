"""API Gateway of ``thawd up --aws``: answers requests to the REST and HTTP APIs whose definitions moto stores.

This package runs in the emulator's own process. A request goes through `request_routing`, then through `rest.server` or
`http.server`, which find the method or route, ask the authorizer, call the integration and make the response.

- `request_routing`: finds the API and the stage for a request
- `rest`: REST APIs (API Gateway version 1)
- `http`: HTTP APIs (API Gateway version 2)
- `operations`: operations of API Gateway's own API that moto lacks, for example deployments and OpenAPI imports
- `api_services`: what `rest` and `http` use of the rest of thawd and of moto
- `function_invocations`: invokes Lambda functions for integrations and authorizers
- `integration_requests`: sends the requests of HTTP and AWS integrations
- `authorizer_cache`, `authorizer_policies`: caches authorizers' answers; evaluates the IAM policies in them
- `json_web_tokens`: checks the tokens of JWT authorizers and of Cognito's user pools
- `usage_plans`: limits the requests of API keys
- `path_templates`, `json_paths`: match paths such as ``/users/{id}``; evaluate JSONPath expressions
"""
