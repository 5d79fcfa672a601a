"""
The part of the real cloud-init that takes user-data, run by the system's Python below a folder: `cloud_init_stage.py FOLDER < user-data`.

Writes what every module would be configured with as JSON; boothooks are executed, scripts are put where the last stage finds them.
"""

import json
import sys
from pathlib import Path

from cloudinit import helpers, stages, util, version
from cloudinit.settings import PER_ALWAYS
from cloudinit.sources.DataSourceNone import DataSourceNone

SYSTEM = {"distro": "debian"}


class Below(stages.Init):
    """All of its files lie in one folder, whatever the machine's own configuration says."""

    paths = None

    def __init__(self, folder: str) -> None:
        super().__init__(ds_deps=[])
        self.paths = helpers.Paths({"cloud_dir": folder, "run_dir": folder})

    def read_cfg(self, extra_fns: object = None) -> None:
        """The machine's own configuration is not read."""
        self._cfg = {"system_info": SYSTEM}


def main(folder: str, sent: bytes) -> None:
    """The user-data was consumed."""
    Path(folder, "instances").mkdir(parents=True)
    init = Below(folder)
    init._initial_subdirs()
    source = DataSourceNone({}, init.distro, init.paths)
    source.userdata_raw = sent
    init.datasource = init.paths.datasource = source
    init.instancify()
    init.update()
    init.consume_data(PER_ALWAYS)
    merged = util.load_yaml(util.load_file(init.paths.get_ipath("cloud_config")))
    json.dump({"version": version.version_string(), "config": merged}, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1], sys.stdin.buffer.read())
