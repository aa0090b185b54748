"""Execution environments, from start to end: each is one process, which runs one invocation at a time.

- `version`: what an environment runs: a published state of a function
- `starts`: starts processes: thaws, forks and cold starts
- `init_phase`: waits until a started process is ready
- `environment`, `concurrent_environment`: run invocations in a process, one or several at a time
- `invocation_deadline`: the time limit of an invocation
- `results`: the result of an invocation, made of the answer of its process
- `invoke_frames`, `result_frames`, `channels`: the frames that the platform and a process exchange, and their channels
- `store_call_channel`, `store_calls`: tables and remote buckets for handlers that ``import thawd``
- `output`, `log_tails`, `platform_log`: a process's output; log tails; START, END and REPORT lines
- `child_processes`: learns when processes end, and kills and reaps what functions left behind
- `peak_memory`, `processor_time`: measure a process
- `suspension`: stops processes between invocations (SIGSTOP)
- `sandbox`: limits on memory, CPU, processes, storage and capabilities
- `runtime_programs`, `entry_points`: which program runs a function: Node, a ``bootstrap``, an image's entry point
- `runtime_api`: Lambda's Runtime API and Extensions API for these programs
- `external_extensions`: starts and ends external extensions
- `boto3_for_functions`: the boto3 that functions get if they bring none
- `trace_variables`: tells SDKs in functions where to send spans and segments
- `debugging`: functions that a debugger can stop
- `user_paths`: names of files in tracebacks, as the user knows them
- `tenant_check`: one environment runs the invocations of one tenant only
"""
