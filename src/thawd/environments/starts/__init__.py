"""Starts the process of an environment in the fastest way that is possible: thaw, else fork, else cold start.

When a request finds no idle environment, these calls lead to a new process::

    Pool.grow -> Room.reserve, Room.start      reserves capacity; ends idle environments if no process can be started
      -> Spawner.start -> _start_fastest       thaw, else fork, else cold; retries if the process is killed from outside
        -> Starter.thaw | fork | cold          one kind of start: identity, channels, process; waits until it is ready
          -> Launcher.begin, thaw | execute    descriptors, temporary folder, exec; follows the process until it ends
            -> Children.watch

However the process ends, `Children` learns that from the pidfd and completes `Child.ended`. `Environment` then reads
what is left in its channels and calls `on_end`, and the pool releases the capacity. `Launcher` removes what the process
left behind.

- `fastest_start`: `Spawner`: chooses the kind of start, and another one when it fails
- `thaw_fork_cold`: `Starter`: carries out one start: thaws an image, forks a template, or starts cold
- `launcher`, `program_execution`: execute programs and follow their processes
- `origin`: what a version is started from, and why it is not started faster
- `image_making`: finds a version's image in the store, or freezes, tests and stores one
- `frozen_images`: the image that a version is thawed from
- `arrivals`: follows images that arrive from another machine while copies of them run
- `file_listing`: lists the files that an image depends on, so that it can be sent to another machine
- `self_test`: the priming event in a copy, and how answers are compared
- `image_key`: the key by which the store finds a version's image
- `touched_pages`: the pages that copies touch until their first answer, for spares and for other machines
- `thawable`: an image that can be thawed, and the error of a failed thaw
- `template`: the channels to a process that is forked or frozen
- `bases`, `package_bases`, `leading_imports`: images of an interpreter, without and with packages, to which images
  refer
- `new_environment`: makes the object of an environment, and reports its init phase
- `ready_deadline`: the time by which a starting environment must be ready
- `engine_files`: the files of the native engine
"""
