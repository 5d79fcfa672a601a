"""
The catalog: what exists to be bought. GPU models and instance types come from the file beside this module, sites from the operator.
"""

from decimal import Decimal, InvalidOperation
from importlib.resources import files
from typing import Any

import yaml
from sqlalchemy import Row
from sqlalchemy.orm import Session

from controlplane.catalog import repository
from controlplane.catalog.errors import CatalogBroken
from controlplane.catalog.models import GpuModelRow, InstanceTypeRow, SiteRow
from controlplane.catalog.states import FirmwareImage, GpuModel, InstanceType, Parts, Site
from controlplane.kit.errors import NameTaken, NotFound
from controlplane.kit.paging import Page, PageAsk

__all__ = [
    "GpuModel",
    "InstanceType",
    "Parts",
    "Site",
    "create_site",
    "ensure_site",
    "expected_parts",
    "find_instance_type",
    "get_gpu_model",
    "get_instance_type",
    "get_site",
    "gpu_facts",
    "instance_facts",
    "instance_type_names",
    "list_gpu_models",
    "list_instance_types",
    "list_sites",
    "load_catalog",
    "put_parts",
    "read_catalog",
    "site_names",
    "update_site",
]


def read_catalog(text: str | None = None) -> tuple[list[GpuModel], list[InstanceType]]:
    """
    The GPU models and instance types of a catalog file (none: ours). Raises CatalogBroken.
    """
    given = text if text is not None else files("controlplane.catalog").joinpath("catalog.yaml").read_text("utf-8")
    try:
        data = yaml.safe_load(given)
        models = [_model(one) for one in data["gpu_models"]]
        types = [_type(one) for one in data["instance_types"]]
    except (yaml.YAMLError, KeyError, TypeError, ValueError, InvalidOperation) as error:
        raise CatalogBroken(f"The catalog cannot be read: {error!r}") from error
    known = {one.name for one in models}
    for one in types:
        if one.gpu_model not in known:
            raise CatalogBroken(f"{one.name} is made of {one.gpu_model}, which is no GPU model of the catalog.")
    return models, types


def _model(one: dict[str, Any]) -> GpuModel:
    if not one["source"]:
        raise ValueError(f"{one['name']} names no source")
    figures = {str(precision): float(tflops) for precision, tflops in one["tflops"].items()}
    return GpuModel(**(one | {"tflops": figures, "mig_profiles": tuple(one["mig_profiles"])}))


def _type(one: dict[str, Any]) -> InstanceType:
    return InstanceType(**(one | {"power_kw": Decimal(one["power_kw"])}))


def load_catalog(session: Session) -> None:
    """
    The database knows the GPU models and instance types of our file, with its figures. Loading twice changes nothing.
    """
    models, types = read_catalog()
    repository.put(session, GpuModelRow, [_columns(one) for one in models])
    repository.put(session, InstanceTypeRow, [_columns(one) for one in types])


def _columns(one: GpuModel | InstanceType) -> dict[str, Any]:
    values = {name: getattr(one, name) for name in one.__dataclass_fields__}
    if isinstance(one, GpuModel):
        values["mig_profiles"] = list(one.mig_profiles)
    return values


def _plain_site(row: SiteRow) -> Site:
    return Site(row.name, row.region, row.description, row.created_at)


def _plain_model(row: GpuModelRow) -> GpuModel:
    return GpuModel(
        row.name,
        row.vendor,
        row.memory_gib,
        row.memory_bandwidth_gb_s,
        dict(row.tflops),
        row.tdp_w,
        row.nvlink_generation,
        tuple(row.mig_profiles),
        row.source,
    )


def _plain_type(row: InstanceTypeRow | Row[Any]) -> InstanceType:
    return InstanceType(
        row.name,
        row.gpu_model,
        row.gpus,
        row.cpus,
        row.memory_gib,
        row.nics,
        row.nic_gbit_s,
        row.nvme_gib,
        row.power_kw,
        row.description,
    )


def ensure_site(session: Session, name: str, region: str, description: str = "") -> Site:
    """
    The site is there; one that was there is left alone.
    """
    repository.add_site(session, name, region, description)
    return get_site(session, name)


def create_site(session: Session, name: str, region: str, description: str = "") -> Site:
    """
    The site is new. Raises NameTaken.
    """
    if not repository.add_site(session, name, region, description):
        raise NameTaken(f"There is a site {name} already.", name=name)
    return get_site(session, name)


def update_site(session: Session, name: str, region: str, description: str) -> Site:
    """
    The site has this region and description. Raises NotFound.
    """
    row = _found(repository.find_site(session, name, lock=True))
    row.region, row.description = region, description
    session.flush()
    return _plain_site(row)


def get_site(session: Session, name: str) -> Site:
    """
    The site. Raises NotFound.
    """
    return _plain_site(_found(repository.find_site(session, name)))


def get_instance_type(session: Session, name: str) -> InstanceType:
    """
    The instance type. Raises NotFound.
    """
    return _plain_type(_found(repository.find_instance_type(session, name)))


def find_instance_type(session: Session, name: str) -> InstanceType | None:
    """
    The instance type, or None.
    """
    row = repository.find_instance_type(session, name)
    return _plain_type(row) if row is not None else None


def get_gpu_model(session: Session, name: str) -> GpuModel:
    """
    The GPU model. Raises NotFound.
    """
    return _plain_model(_found(repository.find_gpu_model(session, name)))


def mig_profiles(session: Session, gpu_model: str) -> tuple[str, ...]:
    """
    The MIG profiles of the model, smallest first; of all models where none is named. None for a model that is not in the catalog.
    """
    facts = gpu_facts(session)
    models = list(facts.values()) if not gpu_model else [facts[gpu_model]] if gpu_model in facts else []
    return tuple(dict.fromkeys(profile for one in models for profile in one.mig_profiles))


def _found(row: Any) -> Any:
    if row is None:
        raise NotFound
    return row


def instance_type_names(session: Session) -> set[str]:
    """
    The names of all instance types.
    """
    return repository.instance_type_names(session)


def list_sites(session: Session, ask: PageAsk) -> Page[Site]:
    """
    A page of sites by name.
    """
    return repository.sites(session, ask).map(_plain_site)


def list_gpu_models(session: Session, ask: PageAsk) -> Page[GpuModel]:
    """
    A page of GPU models by name.
    """
    return repository.gpu_models(session, ask).map(_plain_model)


def list_instance_types(session: Session, ask: PageAsk, *, gpu_model: str | None = None) -> Page[InstanceType]:
    """
    A page of instance types by name; of one GPU model only when one is named.
    """
    return repository.instance_types(session, ask, gpu_model).map(_plain_type)


def gpu_facts(session: Session) -> dict[str, GpuModel]:
    """
    Every GPU model by name, in one query.
    """
    return {row.name: _plain_model(row) for row in repository.all_gpu_models(session)}


def instance_facts(session: Session) -> dict[str, InstanceType]:
    """
    Every instance type by name, in one query.
    """
    return {row.name: _plain_type(row) for row in repository.all_instance_types(session)}


def site_names(session: Session) -> frozenset[str]:
    """
    The names of all sites.
    """
    return repository.site_names(session)


def expected_parts(session: Session) -> dict[str, Parts]:
    """
    What machines of every instance type must have, in one query: what the operator asked for, and where nobody did, the catalog's figures.
    """
    return {row.name: _parts(row) for row in repository.all_parts(session)}


def _parts(row: Any) -> Parts:
    said = {name: getattr(row, name) for name in ("gpu_memory_gib", "nics", "nic_gbit_s", "drives", "drive_gib")}
    asked = frozenset(name for name, value in said.items() if value is not None)
    known = {"gpu_memory_gib": row.model_memory_gib, "nics": row.type_nics, "nic_gbit_s": row.type_nic_gbit_s}
    firmware = {name: tuple(versions) for name, versions in (row.firmware or {}).items()}
    images = {
        name: FirmwareImage(one["version"], one["url"], tuple(one["targets"])) for name, one in (row.firmware_images or {}).items()
    }
    return Parts(**(known | {name: said[name] for name in asked}), firmware=firmware, images=images, asked=asked)


def put_parts(session: Session, name: str, parts: Parts) -> Parts:
    """
    From the next inspection on, machines of the type must have these; machines in use are not touched. Raises NotFound.
    """
    get_instance_type(session, name)
    values: dict[str, Any] = {one: getattr(parts, one) for one in ("gpu_memory_gib", "nics", "nic_gbit_s", "drives", "drive_gib")}
    values["firmware"] = {component: list(versions) for component, versions in parts.firmware.items()}
    values["firmware_images"] = {
        component: {"version": one.version, "url": one.url, "targets": list(one.targets)} for component, one in parts.images.items()
    }
    repository.put_parts(session, name, values)
    return expected_parts(session)[name]
