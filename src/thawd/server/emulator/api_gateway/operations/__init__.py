"""Operations of API Gateway's own API (``apigateway``, ``apigatewayv2``) that moto lacks, or has unlike AWS.

- `rest_apis`, `http_apis`: operations on REST APIs and on HTTP APIs
- `openapi_rest`, `openapi_http`: APIs from OpenAPI documents
- `patches`: patch operations (``op``, ``path``, ``value``) on REST APIs
"""
