"""Scheduling: decides when each invocation runs, and in which environment.

A request goes through `dispatcher`, then waits in a pool's `pool_requests`, then for a core (`core_admission`). The
package `thawd.environments` starts the environments.

- `dispatcher`: runs all invocations: finds the version, applies concurrency limits
- `function_entries`: the dispatcher's record of each function: versions, pools, aliases
- `load`: what a function's running invocations need of its concurrency limit
- `pool`: the environments of one version: leases, starts and ends them
- `pool_requests`: the requests of one version that wait for an environment
- `core_admission`: which request runs next when the processor cores are occupied
- `room`: how many environments fit on this machine, and which function gets the next one
- `keep_alive`, `idle_timer`: how long idle environments are kept; ends them and prewarms
- `provisioned`: how many environments are kept initialised
- `spares`, `pool_spare`: thawed copies that wait for the next start
- `start_failures`: back-off after failed starts
- `batch_runs`: requests that run together as one batch
- `busy_environments`, `leases`: the environments in use, and the leases of them
- `tenant_pools`: a pool for each tenant
- `ended_invocations`: what is reported about invocations that have ended, so that they are recorded
- `invocation_counts`, `status`: metrics of functions; the functions in ``/_thawd/status``
"""
