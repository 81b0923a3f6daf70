"""Names and probabilities of photos with a graph of `ppa export --onnx model.onnx --with-backbone`, without actstore.

pip install onnxruntime pillow numpy; python onnx_photo.py model.onnx photo.jpg another.jpg
"""

import sys

import numpy as np
import onnxruntime
from PIL import Image, ImageOps

model, *photos = sys.argv[1:]
session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
outputs = [output.name for output in session.get_outputs()]
for photo in photos:
    with Image.open(photo) as file:
        image = np.asarray(ImageOps.exif_transpose(file).convert("RGB"))  # (height, width, 3), of any size
    found = dict(zip(outputs, session.run(outputs, {"image": image}), strict=True))
    names, shares = found["names"][0], found["top_probabilities"][0]
    known = found.get("known", [True])[0]  # whether it resembles any category
    print(
        photo,
        *([] if known else ["unknown"]),
        *(f"{name} {share:.1%}" for name, share in zip(names, shares, strict=True)),
        sep="  ",
    )
