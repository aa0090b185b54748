"""Deployment packages for AWS Lambda: what is in them, how they are divided into archives, and the archives' files.

`thawd package` runs these steps: prepare each function, plan, write the archives, try them. This package runs no
server, and changes nothing in code folders.

- `making`: runs all steps
- `preparing`: copies a function's code, installs its requirements, removes files and measures the rest
- `wheels`, `distributions`: install requirements from wheels; list what each installed distribution consists of
- `removal`, `elf`: which files a function does not need when it runs; which libraries an ELF file loads
- `contents`: files, links and empty folders for archives
- `measuring`, `sizes`: sums of sizes for the planner
- `planning`, `layering`: decide from sizes: one zip file, layers, a split package, or an image
- `targets`: Lambda's runtimes and limits
- `writing`, `archives`: write zip and tar files, the same bytes for the same contents
- `thawd_parts`: loads a split package on Lambda
- `trial`: imports the handlers from the archives
- `page`, `treemap`: the HTML page with treemaps
"""
