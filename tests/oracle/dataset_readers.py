"""Write tests/golden/dataset_readers.json: what the real Fluid's `paddle.dataset` yields for tiny
files in the original formats, and the three pictures of tests/golden/images.

Run with the real Fluid's interpreter from the project's root:  python -m tests.oracle.dataset_readers
"""

import json
import os
import tempfile

import numpy as np
from PIL import Image

from tests.parity import dataset_files, dataset_readers


def make_pictures():
    if os.path.exists(dataset_files.IMAGES):
        return
    os.makedirs(dataset_files.IMAGES)
    y, x = np.mgrid[0:30, 0:44]
    for number in range(3):
        waves = [127 + 120 * np.sin(x / (3.0 + c + number)) * np.cos(y / (4.0 + c)) for c in range(3)]
        pixels = np.stack(waves, axis=2).astype(np.uint8)
        pixels = pixels.transpose(1, 0, 2) if number == 2 else pixels
        picture = Image.fromarray(pixels).convert("L") if number == 1 else Image.fromarray(pixels)
        picture.save(os.path.join(dataset_files.IMAGES, "%d.jpg" % number), quality=80)


def main():
    make_pictures()
    golden = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden")
    with tempfile.TemporaryDirectory() as folder:
        dataset_files.make(folder)
        os.chdir(folder)  # uci_housing writes a picture to where it is
        import paddle.dataset as package

        def path_of(url, module_name, md5sum=None, save_name=None):
            return os.path.join(folder, module_name, save_name or url.split("/")[-1])

        package.common.DATA_HOME = folder
        package.common.download = path_of
        for module in (package.flowers, package.mq2007):
            module.download = path_of
        result = {build.__name__: build(package) for build in dataset_readers.MODULES}
    with open(os.path.join(golden, "dataset_readers.json"), "w") as f:
        lines = ["%s: %s" % (json.dumps(k), json.dumps(v)) for k, v in sorted(result.items())]
        f.write("{\n" + ",\n".join(lines) + "\n}\n")


main()
