"""The kinds of resources: how each type's resources are made, changed and deleted.

`kinds` defines what a kind is, `registry` finds the kind of a type, `aws` calls the services. The other modules have
the kinds themselves: those of Lambda, Logs, API Gateway and Scheduler are made through thawd's own API, most others
through the APIs of the emulated services, and the rest by moto's classes (`moto_models`).
"""
