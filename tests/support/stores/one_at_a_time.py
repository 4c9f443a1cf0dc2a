"""Stands for the thread pool of the job store where a test says who makes the next request."""

from concurrent.futures import Future


class OneAtATime:
    """Each call is made when it is submitted, in the submitter's thread."""

    def __init__(self, *_, **__):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def submit(self, function, *args):
        future = Future()
        try:
            future.set_result(function(*args))
        except Exception as error:  # noqa: BLE001 - a future keeps any
            future.set_exception(error)
        return future
