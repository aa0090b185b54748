"""Two ways to serve many models with one function.

``resident`` loads the model that a request names. It keeps as many as fit into ``MEMORY_MB`` and notices within seconds
when one is replaced in the store. ``single`` serves the one model that its variable ``MODEL`` names. It is published
once for each model, with SnapStart, so the model is loaded as soon as the environment is thawed.

An event is ``{"model": "model-007", "image": "<64 x 64 x 3 bytes, Base64>"}``; over HTTP it is the body.
"""

import base64
import json
import os
import time

import numpy

import thawd
from thawd import models

FOLLOW_S = 1.0


def address_of(name):
    """Return a model's address: below ``STORE``, such as s3://bucket/models, or else in the local bucket ``models``."""
    store = os.environ.get("STORE") or "file:" + thawd.bucket("models").folder
    place, mark, parameters = store.partition("?")
    return f"{place}/{name}.onnx{mark}{parameters}"


def load(model):
    """Load a model, mapped from its optimised copy.

    Prepacking would copy weights into the layout that ONNX Runtime's kernels use. It is off, because the optimised copy
    has the weights of convolutions in that layout already.
    """
    return models.load_onnx(model, prepack=False, optimise=os.environ.get("OPTIMISE") != "no")


def image_of(event):
    return numpy.frombuffer(base64.b64decode(event["image"]), numpy.uint8).reshape(1, 64, 64, 3)


def answer(loaded, event, how, began_s):
    ready_s = time.perf_counter()
    [scores] = loaded.value.run(["scores"], {"image": image_of(event)})[0]
    run_ms = (time.perf_counter() - ready_s) * 1000
    return {
        "model": event["model"],
        "class": int(scores.argmax()),
        "scores": [float(score) for score in scores],
        "how": how,
        "have_ms": (ready_s - began_s) * 1000,
        "run_ms": run_ms,
        "etag": loaded.model.identity,
    }


if os.environ.get("MODEL"):
    only = load(models.open(address_of(os.environ["MODEL"])))
    # The first run allocates the session's buffers. It happens before the snapshot, so that the copies need not do it.
    only.value.run(["scores"], {"image": numpy.zeros((1, 64, 64, 3), numpy.uint8)})
    invoked = False
else:
    memory_mb = float(os.environ.get("MEMORY_MB", "120"))
    residents = models.Residents(load, most_bytes=int(memory_mb * 2**20), follow_s=FOLLOW_S)


def single(event, context):
    """Answer with the one model that was loaded when the version was published."""
    global invoked
    began_s = time.perf_counter()
    if event["model"] != os.environ["MODEL"]:
        raise ValueError(f"this version has {os.environ['MODEL']}, not {event['model']}")
    how, invoked = ("hit" if invoked else "miss"), True
    return answer(only, event, how, began_s)


def resident(event, context):
    """Answer with any model, loaded when it is requested."""
    if "body" in event:
        event = json.loads(base64.b64decode(event["body"]) if event["isBase64Encoded"] else event["body"])
    began_s, before = time.perf_counter(), residents.hits
    try:
        loaded = residents.get(address_of(event["model"]))
    except models.ModelNotFoundError:
        return {"statusCode": 404, "body": json.dumps({"message": f"there is no model {event['model']}"})}
    return answer(loaded, event, "hit" if residents.hits > before else "miss", began_s)
