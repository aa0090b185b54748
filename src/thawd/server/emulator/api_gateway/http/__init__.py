"""HTTP APIs (API Gateway version 2).

- `server`: a request from the stage to the response
- `definitions`: an API's definition; finds the route for a request
- `calls`: a request, its events for functions, and its variables
- `authorizers`: asks the route's authorizer
- `integrations`: calls the route's integration and makes the response
- `parameters`: changes requests and responses, as parameter mappings say
- `errors`: the errors of API Gateway itself
"""
