"""Names and probabilities of photos with a graph of `ppa export --onnx model.onnx --with-backbone`, without actstore.

pip install onnxruntime pillow numpy; python onnx_photo.py model.onnx photo.jpg another.jpg
"""

import sys

import numpy as np
import onnxruntime
from PIL import Image, ImageOps

model, *photos = sys.argv[1:]
session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
for photo in photos:
    with Image.open(photo) as file:
        image = np.asarray(ImageOps.exif_transpose(file).convert("RGB"))  # (height, width, 3), of any size
    names, shares = session.run(["names", "top_probabilities"], {"image": image})
    print(photo, *(f"{name} {share:.1%}" for name, share in zip(names[0], shares[0], strict=True)), sep="  ")
