"""Container images, built without Docker: from Dockerfiles and from functions, with Lambda's base images made here.

- `dockerfile`: parses Dockerfiles and plans their builds
- `building`: builds an image: carries out the planned stages
- `layer_instructions`: COPY, ADD, RUN and WORKDIR, which make layers
- `copy_instructions`, `added_archives`: the files of COPY and ADD; the tar files that ADD unpacks
- `run_instruction`, `run_process`, `run_mounts`: RUN: runs a command with the image as its root and finds what it
  changed
- `configuration_instructions`: ENV, CMD and the other instructions that make no layer
- `stage_state`: a stage so far: layers, configuration, variables
- `step_records`: the build cache: which layer each step made
- `lambda_base`, `host_files`, `installed_packages`: a base image like AWS's for Python, from this machine's interpreter
- `function_image`: an image from a function of thawd.toml
- `snapshot_image`, `freeze_in_image`: an image of thawd with a function and its snapshot; freezes the function in it
"""
