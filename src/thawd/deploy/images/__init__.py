"""Container images, built without Docker: from Dockerfiles and from functions, with Lambda's base images made here.

Reading order: `dockerfile` (text to stages), `building` (carries out the stages), `steps` with `copying`, `running` and
`archives` (instructions that make layers), `stage_state` and `step_records` (what a build has so far, and remembers),
`lambda_base` with `host_files` and `installed_packages` (a base image from an interpreter of this machine),
`function_image`.
"""
