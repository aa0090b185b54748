"""OpenCV: filters in its own pool of threads, codecs, features."""

from __future__ import annotations

import hashlib
from typing import Any

import cv2
import numpy as np
import repeated


class OpenCv:
    """A detector, and a pool of threads that runs before the freeze."""

    def __init__(self, options: repeated.Options) -> None:
        cv2.setNumThreads(options.threads)
        self._detector = cv2.ORB_create(200)

    def answer(self, number: int) -> Any:
        picture = np.random.default_rng(number).integers(0, 256, (480, 640, 3), np.uint8)
        picture = cv2.resize(cv2.GaussianBlur(picture, (9, 9), 0), (800, 600), interpolation=cv2.INTER_CUBIC)
        gray = cv2.cvtColor(picture, cv2.COLOR_BGR2GRAY)
        encoded = cv2.imencode(".png", picture)[1]
        points, descriptors = self._detector.detectAndCompute(gray, None)
        return {
            "png": hashlib.sha256(cv2.imdecode(encoded, cv2.IMREAD_COLOR).tobytes()).hexdigest(),
            "edges": int(cv2.Canny(gray, 5, 15).sum()),
            "points": sorted([round(point.pt[0], 3), round(point.pt[1], 3)] for point in points),
            "descriptors": hashlib.sha256(descriptors.tobytes()).hexdigest(),
            "spectrum": float(np.abs(cv2.dft(gray.astype(np.float32))).mean()),
            "threads": cv2.getNumThreads(),
        }


if __name__ == "__main__":
    repeated.main(OpenCv)
