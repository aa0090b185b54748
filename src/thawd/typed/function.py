"""The decorator `function`, and the error with which a typed function refuses a request.

::

    import thawd

    @thawd.function
    def classify(image: PIL.Image.Image, top: int = 3) -> list[Label]:
        ...
"""

from typing import Any, Callable


class HttpError(Exception):
    """A typed function raises this to answer with another status than 200.

    Attributes:
        status_code: HTTP status, 400 to 599.
        detail: what the answer says: ``{"detail": ...}``; anything that JSON can represent.
    """

    def __init__(self, status_code: int, detail: Any) -> None:
        super().__init__("%d: %s" % (status_code, detail))
        self.status_code = status_code
        self.detail = detail


class TypedFunction:
    """A function that serves HTTP requests, created by the decorator `function`.

    A call passes on to the function, so that tests and other code can use it as before.

    Attributes:
        is_typed_function: always True; the runtime recognises a typed function by this attribute.
    """

    is_typed_function = True

    def __init__(self, function: Callable[..., Any]) -> None:
        if not callable(function):
            raise TypeError("@thawd.function decorates a function, not a %s" % type(function).__name__)
        self.__wrapped__ = function
        self.__name__ = getattr(function, "__name__", type(function).__name__)
        self.__doc__ = getattr(function, "__doc__", None)
        self.__module__ = getattr(function, "__module__", "")

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Call the function."""
        return self.__wrapped__(*arguments, **keywords)


def function(decorated: Callable[..., Any]) -> TypedFunction:
    """Make an HTTP endpoint of a function with annotations.

    Requests are checked against the annotations. A request that does not fit is answered with 422 and every mistake in
    it. The function has a page to try it (open its address in a browser), and an OpenAPI document, ``openapi.json``
    below its path.
    """
    return TypedFunction(decorated)
