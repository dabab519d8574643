"""The configuration for nginx, as nginx reads it."""

import re
import subprocess

from tests.conftest import needs
from tests.deploy.test_deploy import DEPLOY, clean_run


def test_nginx_accepts_the_configuration(tmp_path):
    needs("nginx")
    config = (DEPLOY / "nginx.conf").read_text().replace("listen 8080", "listen 127.0.0.1:18080")
    version = subprocess.run(["nginx", "-v"], capture_output=True, text=True, timeout=120, check=True).stderr
    if tuple(map(int, re.findall(r"\d+", version))) < (1, 27, 3):  # the first that resolves names again
        config = config.replace("server toolwire:8787 resolve", "server 127.0.0.1:8787")
    (tmp_path / "nginx.conf").write_text(config)
    options = f"pid {tmp_path}/nginx.pid; error_log stderr;"
    clean_run("nginx", "-t", "-c", str(tmp_path / "nginx.conf"), "-p", str(tmp_path), "-g", options)
