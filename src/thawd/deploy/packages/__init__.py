"""Deployment packages for AWS Lambda: what is in them, how they are divided into archives, and the archives' files.

`thawd package` runs these steps, each in a module:

1. `wheels` installs a function's requirements for the target from wheels; `distributions` lists what was installed.
2. `removal` decides by rules which files are not needed when the function runs.
3. `measuring` sums up what is left, and `planning` turns the sums into a plan: one zip file, layers, a split package,
   or an image. The planner is pure: it reads no files, and its plan is data.
4. `writing` and `archives` write the archives, the same bytes for the same contents.
5. `trial` imports the handlers from them.

`making` runs all of them. This package runs no server, and changes nothing in code folders.
"""
